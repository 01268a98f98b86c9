"""Attention: the only place in the package where it is computed.

Notation, used throughout: `b` batch, `n` queries, `m` keys, `h` heads, `g` key heads (grouped-query attention: `g`
divides `h`), `d` width of a query head, `e` width of a key head (`d`, unless the score maps unequal widths), `v` width
of a value head, `c` channels, `gh gw` patch grid, `ph pw` pixels of a patch.

Vaswani et al. 2017; grouped queries: Ainslie et al. 2023. Independent of images and text.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vit.attention.backends import BACKENDS, AttentionOptions, Refused
from vit.attention.backends.products import reference_weights
from vit.attention.choice import preferences
from vit.attention.scores import Additive, ScaledDotProduct, Score
from vit.config import nearest
from vit.config.arguments import check_type
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

    `mask` (boolean, True = may attend) and `bias` (added to the scores, finite) broadcast to `b h n m`. A query that
    may attend to nothing gives zeros. Dropout of the weights is drawn per sample from `rng`, or from torch's
    generator. Raises ValueError for mismatched shapes, a mask that is not boolean, a dropout outside [0, 1) and a
    backend that does not support the options.
    """
    check_shapes(query, key, value, score)
    if dropout != 0.0:
        check_type("dropout", dropout, float)
        check_rate("dropout", dropout)
    if rng is not None:
        check_type("rng", rng, SampleRandom)
    check_scale(scale)
    options = AttentionOptions(
        score=score,
        scale=scale,
        mask=as_4d("mask", mask, query, key),
        bias=as_4d("bias", bias, query, key),
        dropout=dropout,
        rng=rng,
    )
    if not isinstance(backend, str) or (backend != "auto" and backend not in BACKENDS):
        check_type("backend", backend, str)
        raise ValueError(f"backend: {backend!r} is not valid: {nearest(backend, ['auto', *BACKENDS])}")
    *first, last = preferences(query, key, options) if backend == "auto" else (backend,)
    for name in first:
        try:
            return BACKENDS[name](query, key, value, options)
        except Refused:
            continue
    return BACKENDS[last](query, key, value, options)


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    score: Score = DOT_PRODUCT,
    scale: float | None = None,
) -> Tensor:
    """Attention weights, `b h n d, b g m e -> b h n m`; rows sum to 1, or to 0 where the mask allows nothing."""
    check_shapes(query, key, key, score)
    check_scale(scale)
    mask, bias = as_4d("mask", mask, query, key), as_4d("bias", bias, query, key)
    return reference_weights(query, key, AttentionOptions(score=score, scale=scale, mask=mask, bias=bias))


def check_shapes(query: Tensor, key: Tensor, value: Tensor, score: Score) -> None:
    """ValueError for vectors that do not fit together, and for a score that is none."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        for name, vectors in (("query", query), ("key", key), ("value", value)):
            check_type(name, vectors, Tensor)
    if isinstance(score, type) or not callable(score):
        shown = score.__name__ if isinstance(score, type) else repr(score)
        raise ValueError(f"score: {shown} is not valid: it must be one of vit.attention.scores, as ScaledDotProduct()")
    if not query.dim() == key.dim() == value.dim() == 4 or key.shape[:3] != value.shape[:3]:
        rule = ""
    elif query.shape[0] != key.shape[0]:
        rule = ", with one b"
    elif 0 in (query.shape[1], query.shape[3], key.shape[1]):
        rule = ", with at least one head, at least one wide"
    elif broken := _rule_of_kind(query, key, value):
        rule = f", {broken}"
    elif query.shape[3] != key.shape[3] and not isinstance(score, Additive):
        rule = ", with e = d unless the score is Additive"
    elif query.shape[1] % key.shape[1]:
        rule = f", and g ({key.shape[1]}) must divide h ({query.shape[1]})"
    else:
        return  # the message is built only on failure: every block of every pass is checked
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (query, key, value))
    raise ValueError(
        f"query, key, value of shapes {shapes} are not valid: they must be b h n d, b g m e, b g m v{rule}"
    )


def check_scale(scale: float | None) -> None:
    """ValueError for a scale that is not a finite number."""
    if scale is not None and not (isinstance(scale, int | float) and math.isfinite(scale)):
        raise ValueError(f"scale: {scale!r} is not valid: it is a finite number, or None for that of the score")


def _rule_of_kind(query: Tensor, key: Tensor, value: Tensor) -> str:
    """A rule about types and devices that the vectors break; nothing if they break none."""
    if not query.device == key.device == value.device:
        return f"on one device, not {query.device}, {key.device}, {value.device}"
    if not (query.is_floating_point() and key.is_floating_point() and value.is_floating_point()):
        return f"of real numbers, not {query.dtype}, {key.dtype}, {value.dtype}"
    one = query.dtype == key.dtype == value.dtype or torch.is_autocast_enabled(query.device.type)
    return "" if one else f"of one type, not {query.dtype}, {key.dtype}, {value.dtype}"


def as_4d(name: str, tensor: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Mask or bias with leading dimensions of 1. ValueError for a wrong type or one that does not broadcast."""
    if tensor is None:
        return None
    if not isinstance(tensor, Tensor):
        check_type(name, tensor, Tensor)
    if not (tensor.dtype.is_floating_point if name == "bias" else tensor.dtype == torch.bool):
        raise ValueError(f"{name}: {tensor.dtype} is not valid: a mask is boolean (True = may attend), a bias is real")
    full = (*query.shape[:3], key.shape[2])
    shape = (1,) * (4 - tensor.dim()) + tuple(tensor.shape)
    if len(shape) != 4 or any(size not in (1, target) for size, target in zip(shape, full, strict=True)):
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} is not valid: it must broadcast to b h n m, {full}")
    return tensor.reshape(shape)
