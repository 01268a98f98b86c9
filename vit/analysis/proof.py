"""Whether queries, keys and values explain what an attention module gave: its output is rebuilt from them and compared.

Constants prove nothing, so differences are judged by what the map changes in the output, not by the output's numbers.
A wrong map says how much that is: even attention or, where the map itself is even, even attention to the second half of
the keys. Where rounding could hide that change, as where nothing follows from the map at all, there is no proof, and
that is an error. All heads and samples are judged together: of a head whose part is lost in the rest, nothing is said.
Letters: see `attend.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit.analysis.attention_calls import Heads
from vit.attention.attend import DOT_PRODUCT, attend, attention_weights
from vit.attention.scores import Score

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest difference, as a part of what the map changes: of the difference to the output of even attention."""
ROUNDING = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""What may be added to it, as a part of the output's largest number: sums in another order."""
POWER = 2.0
"""So many times what is allowed, the change by the wrong map must be: it could not have passed."""
EVEN = 1e-2
"""The largest part of a query's weight that would have to move, in a map that counts as even."""
PROVEN = 2**21
"""Weights that a proof may make at once; with more, it takes evenly spread queries of every sample."""
_LEFT_OUT = -30.0
"""Added to the scores of the first half of the keys; a query that may attend to no others attends to these evenly."""


@torch.no_grad()
def prove(name: str, heads: Heads, output: Tensor, *, score: Score = DOT_PRODUCT) -> float:
    """The largest difference to `output`, b n c, as a part of what the wrong map changes (of its largest number where
    there is one key, and so one map). ValueError naming the layer where it is more than rounding, and where the wrong
    map would not be seen.
    """
    rows = _rows(heads)
    given, rebuilt = output[:, rows], _rebuilt(heads, rows, score)
    if rebuilt.shape != given.shape:
        shapes = f"{tuple(given.shape)}, and {tuple(rebuilt.shape)} is what its queries, keys and values give"
        raise ValueError(f"capture: {name} is not valid: its output is {shapes}; it computes something else")
    even = _evenly(heads, rows)
    largest, effect = float(given.abs().max()), _apart(rebuilt, even)
    allowed = TOLERANCE[given.dtype] * effect + ROUNDING[given.dtype] * largest
    difference = _apart(rebuilt, given)
    if not difference <= allowed:
        raise ValueError(
            f"capture: {name} is not valid: the output rebuilt from its queries, keys and values differs by "
            f"{difference:.2g} (at most {allowed:.1g}; the map changes {effect:.2g}); it computes something else"
        )
    power = effect
    if effect <= POWER * allowed and _unevenness(heads, rows, score) <= EVEN:
        power = _apart(_evenly(heads, rows, second_half=True), even)
    if not _has_choice(heads):
        return difference / max(largest, torch.finfo(given.dtype).tiny)
    if not power > POWER * allowed:
        raise ValueError(
            f"capture: {name} is not valid: its map cannot be proved: another would change its output, whose largest "
            f"number is {largest:.2g}, by {power:.2g}, and up to {allowed:.1g} is rounding ({given.dtype})"
        )
    return difference / power


def _rebuilt(heads: Heads, rows: Tensor, score: Score) -> Tensor:
    mask, bias = (_of_rows(tensor, rows) for tensor in (heads.mask, heads.bias))
    query, key, value, scale = heads.query[:, :, rows], heads.key, heads.value, heads.scale
    attended = attend(query, key, value, mask=mask, bias=bias, score=score, scale=scale, backend="reference")
    return heads.finish(attended.to(value.dtype), rows)


def _unevenness(heads: Heads, rows: Tensor, score: Score) -> float:
    mask, bias = (_of_rows(tensor, rows) for tensor in (heads.mask, heads.bias))
    query, key = heads.query[:, :, rows], heads.key
    weights = attention_weights(query, key, mask=mask, bias=bias, score=score, scale=heads.scale)
    even = attention_weights(torch.zeros_like(query), torch.zeros_like(key), mask=mask)
    return float((weights.float() - even.float()).abs().sum(dim=-1).max()) / 2


def _evenly(heads: Heads, rows: Tensor, *, second_half: bool = False) -> Tensor:
    """What equal weights on all keys that the mask allows would give, or on those of the second half: b r c, b 1 c."""
    mask = _of_rows(heads.mask, rows)
    alike = mask is None or mask.dim() < 2 or mask.shape[-2] == 1
    b, _, m, e = heads.key.shape
    query = heads.key.new_zeros(b, heads.query.shape[1], 1 if alike else len(rows), e)
    bias = None
    if second_half:
        first = torch.arange(m, device=query.device) < m // 2
        bias = query.new_zeros(m).masked_fill(first, _LEFT_OUT)
    attended = attend(query, heads.key, heads.value, mask=mask, bias=bias, backend="reference")
    return heads.finish(attended.to(heads.value.dtype), rows)


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def _has_choice(heads: Heads) -> bool:
    """Whether any query may attend to more than one key."""
    if heads.mask is None:
        return heads.key.shape[2] > 1
    return bool((heads.mask.expand(*heads.mask.shape[:-1], heads.key.shape[2]).sum(dim=-1) > 1).any())


def _rows(heads: Heads) -> Tensor:
    """The queries that a proof takes: all where there is room, else evenly spread, the first and the last included."""
    b, h, n = heads.query.shape[:3]
    count = max(2, PROVEN // (b * h * heads.key.shape[2]))
    device = heads.query.device
    if count >= n:
        return torch.arange(n, device=device)
    return torch.linspace(0, n - 1, count, device=device).round().long()


def _of_rows(tensor: Tensor | None, rows: Tensor) -> Tensor | None:
    """What broadcasts to `b h n m`, of some queries."""
    if tensor is None or tensor.dim() < 2 or tensor.shape[-2] == 1:
        return tensor
    return tensor[..., rows, :]
