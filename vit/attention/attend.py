"""Attention: the only place in the package where it is computed.

The legend, used everywhere: `b` batch, `n` queries, `m` keys, `h` heads, `g` key heads (grouped queries: `g` divides
`h`), `d` head width, `e` the keys' (`d`, unless the score maps unequal widths), `v` value width, `c` channels, `gh gw`
patch grid, `ph pw` pixels of a patch.

Vaswani et al. 2017; grouped queries: Ainslie et al. 2023. This room does not know that images or text exist.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vit.attention.backends import BACKENDS, Refused, Request, reference_weights
from vit.attention.choice import preferences
from vit.attention.scores import Additive, ScaledDotProduct, Score
from vit.config import nearest
from vit.config.rules import check_rate
from vit.randomness import SampleRandom

DOT_PRODUCT = ScaledDotProduct()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    score: Score = DOT_PRODUCT,
    scale: float | None = None,
    dropout: float = 0.0,
    rng: SampleRandom | None = None,
    backend: str = "auto",
) -> Tensor:
    """Weighted averages of the values: `b h n d, b g m e, b g m v -> b h n v` (Vaswani et al., eq. 1).

    `mask` (boolean, True = may attend) and `bias` (added to the scores, finite) broadcast to `b h n m`. A
    query that may attend to nothing gives zeros. `dropout` of the weights is drawn per sample from `rng`, or
    from torch's generator. Raises ValueError for shapes that do not fit, a mask of numbers, a dropout not in
    [0, 1) and for a backend that cannot do what is asked.
    """
    check_shapes(query, key, value, score)
    check_rate("dropout", dropout)
    request = Request(
        score=score,
        scale=scale,
        mask=four_dimensions("mask", mask, query, key),
        bias=four_dimensions("bias", bias, query, key),
        dropout=dropout,
        rng=rng,
    )
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"backend: {backend!r} is not valid: {nearest(backend, ['auto', *BACKENDS])}")
    *first, last = preferences(query, key, request) if backend == "auto" else (backend,)
    for name in first:
        try:
            return BACKENDS[name](query, key, value, request)
        except Refused:
            continue
    return BACKENDS[last](query, key, value, request)


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    score: Score = DOT_PRODUCT,
    scale: float | None = None,
) -> Tensor:
    """The map itself, `b h n d, b g m e -> b h n m`; rows sum to 1, or to 0 where the mask allows nothing."""
    check_shapes(query, key, key, score)
    mask, bias = four_dimensions("mask", mask, query, key), four_dimensions("bias", bias, query, key)
    return reference_weights(query, key, Request(score=score, scale=scale, mask=mask, bias=bias))


def check_shapes(query: Tensor, key: Tensor, value: Tensor, score: Score) -> None:
    """ValueError for vectors that do not fit; the line is made only then, for every block of every pass asks."""
    broken = _broken_rule(query, key, value, score)
    if broken is None:
        return
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))
    raise ValueError(
        f"query, key, value of shapes {shapes} are not valid: they must be b h n d, b g m e, b g m v{broken}"
    )


def _broken_rule(query: Tensor, key: Tensor, value: Tensor, score: Score) -> str | None:
    """What the vectors must be besides, where they are not; None: they fit."""
    if not query.dim() == key.dim() == value.dim() == 4 or key.shape[:3] != value.shape[:3]:
        return ""
    if query.shape[0] != key.shape[0]:
        return ", with one b"
    if 0 in (query.shape[1], query.shape[3], key.shape[1]):
        return ", with at least one head, at least one wide"
    if not (query.is_floating_point() and key.is_floating_point() and value.is_floating_point()):
        return f", of real numbers, not {query.dtype}, {key.dtype}, {value.dtype}"
    if query.shape[3] != key.shape[3] and not isinstance(score, Additive):
        return ", with e = d unless the score is Additive"
    if query.shape[1] % key.shape[1]:
        return f", and g ({key.shape[1]}) must divide h ({query.shape[1]})"
    return None


def four_dimensions(name: str, tensor: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    if tensor is None:
        return None
    if not (tensor.dtype.is_floating_point if name == "bias" else tensor.dtype == torch.bool):
        raise ValueError(f"{name}: {tensor.dtype} is not valid: a mask is boolean (True = may attend), a bias is real")
    full = (*query.shape[:3], key.shape[2])
    shape = (1,) * (4 - tensor.dim()) + tuple(tensor.shape)
    if len(shape) != 4 or any(size not in (1, whole) for size, whole in zip(shape, full, strict=True)):
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} is not valid: it must broadcast to b h n m, {full}")
    return tensor.reshape(shape)
