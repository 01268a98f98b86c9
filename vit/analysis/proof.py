"""Proof that queries, keys and values explain an attention module's output: it is rebuilt from them and compared.

A nearly constant output would pass with any map, so differences are measured against the change that a wrong map makes:
even attention or, where the map itself is even, even attention to the second half of the keys. Where rounding could
hide that change, or the output does not depend on the map at all, there is no proof, and that is an error. All heads
and samples are tested together: a head whose contribution is negligible is not tested. Notation: see `core.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit.analysis.attention_calls import Heads
from vit.analysis.unsupported import Unsupported
from vit.attention.core import DOT_PRODUCT, attend, attention_weights
from vit.attention.scores import Score

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest difference, relative to the change by the map: the difference to the output of even attention."""
ROUNDING = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Added to it, relative to the output's largest number: sums in another order."""
MIN_POWER = 2.0
"""The change by the wrong map must be this many times the allowed difference: it could not have passed."""
EVEN_MAP = 1e-2
"""In a map that counts as even, no query has more than this share of its weight in other places."""
MAX_WEIGHTS = 2**21
"""Weights computed at once in a proof; beyond that, evenly spread queries of every sample are taken."""
_LEFT_OUT = -30.0
"""Added to the scores of the first half of the keys; a query that may attend to no others attends to these evenly."""


@torch.no_grad()
def prove_attention_output(name: str, heads: Heads, output: Tensor, *, score: Score = DOT_PRODUCT) -> float:
    """Return the largest difference to `output`, b n c, relative to the change by the wrong map (to the output's
    largest number where there is one key, and so one map).

    Unsupported, naming the layer, where it exceeds rounding, and where a wrong map would not be noticed.
    """
    rows = _sample_rows(heads)
    given, rebuilt = output[:, rows], _rebuild_output(heads, rows, score)
    if rebuilt.shape != given.shape:
        shapes = f"{tuple(given.shape)}, and {tuple(rebuilt.shape)} is what its queries, keys and values give"
        raise Unsupported(f"capture: {name} is not valid: its output is {shapes}; it computes something else")
    even = _even_output(heads, rows)
    largest, effect = float(given.abs().max()), _largest_difference(rebuilt, even)
    allowed = TOLERANCE[given.dtype] * effect + ROUNDING[given.dtype] * largest
    difference = _largest_difference(rebuilt, given)
    if not difference <= allowed:
        raise Unsupported(
            f"capture: {name} is not valid: the output rebuilt from its queries, keys and values differs by "
            f"{difference:.2g} (at most {allowed:.1g}; the map changes {effect:.2g}); it computes something else"
        )
    power = effect
    if effect <= MIN_POWER * allowed and _distance_from_even(heads, rows, score) <= EVEN_MAP:
        power = _largest_difference(_even_output(heads, rows, second_half=True), even)
    if not _has_choice(heads):
        return difference / max(largest, torch.finfo(given.dtype).tiny)
    if not power > MIN_POWER * allowed:
        raise Unsupported(
            f"capture: {name} is not valid: its map cannot be proved: another would change its output, whose largest "
            f"number is {largest:.2g}, by {power:.2g}, and up to {allowed:.1g} is rounding ({given.dtype})"
        )
    return difference / power


def _rebuild_output(heads: Heads, rows: Tensor, score: Score) -> Tensor:
    mask, bias = (_select_rows(tensor, rows) for tensor in (heads.mask, heads.bias))
    query, key, value, scale = heads.query[:, :, rows], heads.key, heads.value, heads.scale
    attended = attend(query, key, value, mask=mask, bias=bias, score=score, scale=scale, backend="reference")
    return heads.finish(attended.to(value.dtype), rows)


def _distance_from_even(heads: Heads, rows: Tensor, score: Score) -> float:
    mask, bias = (_select_rows(tensor, rows) for tensor in (heads.mask, heads.bias))
    query, key = heads.query[:, :, rows], heads.key
    weights = attention_weights(query, key, mask=mask, bias=bias, score=score, scale=heads.scale)
    even = attention_weights(torch.zeros_like(query), torch.zeros_like(key), mask=mask)
    return float((weights.float() - even.float()).abs().sum(dim=-1).max()) / 2


def _even_output(heads: Heads, rows: Tensor, *, second_half: bool = False) -> Tensor:
    """The output of equal weights on all keys that the mask allows, or on those of the second half: b r c, b 1 c."""
    mask = _select_rows(heads.mask, rows)
    alike = mask is None or mask.dim() < 2 or mask.shape[-2] == 1
    b, _, m, e = heads.key.shape
    query = heads.key.new_zeros(b, heads.query.shape[1], 1 if alike else len(rows), e)
    bias = None
    if second_half:
        first = torch.arange(m, device=query.device) < m // 2
        bias = query.new_zeros(m).masked_fill(first, _LEFT_OUT)
    attended = attend(query, heads.key, heads.value, mask=mask, bias=bias, backend="reference")
    return heads.finish(attended.to(heads.value.dtype), rows)


def _largest_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _has_choice(heads: Heads) -> bool:
    """Whether any query may attend to more than one key."""
    if heads.mask is None:
        return heads.key.shape[2] > 1
    return bool((heads.mask.expand(*heads.mask.shape[:-1], heads.key.shape[2]).sum(dim=-1) > 1).any())


def _sample_rows(heads: Heads) -> Tensor:
    """The queries of a proof: all where there is room, else evenly spread, the first and the last included."""
    b, h, n = heads.query.shape[:3]
    count = max(2, MAX_WEIGHTS // (b * h * heads.key.shape[2]))
    device = heads.query.device
    if count >= n:
        return torch.arange(n, device=device)
    return torch.linspace(0, n - 1, count, device=device).round().long()


def _select_rows(tensor: Tensor | None, rows: Tensor) -> Tensor | None:
    """The rows of some queries, of a tensor that broadcasts to `b h n m`."""
    if tensor is None or tensor.dim() < 2 or tensor.shape[-2] == 1:
        return tensor
    return tensor[..., rows, :]
