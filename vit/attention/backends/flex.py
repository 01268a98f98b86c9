"""torch's FlexAttention: a kernel compiled for the mask and bias at hand, which skips blocks that the mask forbids.

It is compiled on first use, for every combination of type, heads, widths and of having a mask or a bias, and once more
when the tokens change (on a CPU each time that they do): seconds on a CUDA device, the better part of a minute on a
CPU. Dong et al. 2024. Letters: see
`attend.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vit.attention.backends.request import Refused, Request, cast_by_autocast, dead_rows

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
NARROWEST = 16
"""Of heads on a CUDA device, the least that a matrix unit takes."""
VARIANTS = 256
"""Kernels that one process may compile. Beyond it, torch would write the map out; here it fails instead."""


def flex(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    query, key, factor = request.inner_product("flex").vectors(query, key, request.scale)
    query, key, value = cast_by_autocast(query, key, value)
    _refuse(query, key, value, request)
    bias = request.bias
    if not torch.is_grad_enabled():  # on a CPU, it minds tensors that could ask for a gradient
        query, key, value = query.detach(), key.detach(), value.detach()
        bias = None if bias is None else bias.detach()
    dead = None if request.mask is None else dead_rows(request.mask)
    attended = _run(
        query,
        key,
        value,
        score_mod=None if bias is None else _adding(bias),
        block_mask=None if request.mask is None or dead is None else _blocks(request.mask | dead, query, key),
        scale=float(factor),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended if dead is None else attended.masked_fill(dead, 0.0)


def _refuse(query: Tensor, key: Tensor, value: Tensor, request: Request) -> None:
    vectors = (query, key, value)
    if request.dropout > 0:
        raise Refused("flex", "FlexAttention has no dropout, use 'matmul'")
    if query.device.type not in ("cpu", "cuda"):
        raise Refused("flex", f"it is tried on CPU and CUDA devices, not on {query.device.type!r}, use 'matmul'")
    if len({tensor.dtype for tensor in vectors}) > 1 or query.dtype not in DTYPES:
        found = ", ".join(sorted({str(tensor.dtype) for tensor in vectors}))
        raise Refused("flex", f"it takes one type, float32, bfloat16 or float16, not {found}, use 'reference'")
    if 0 in (*query.shape, *key.shape, *value.shape):
        raise Refused("flex", "it takes no empty tensors, use 'matmul'")
    learned = (*vectors, request.bias) if request.bias is not None else vectors
    if query.device.type == "cpu" and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in learned):
        raise Refused("flex", "FlexAttention has no gradients on a CPU, use 'sdpa'")
    if query.device.type == "cuda" and min(query.shape[-1], value.shape[-1]) < NARROWEST:
        widths = f"{query.shape[-1]} and values of {value.shape[-1]}"
        raise Refused("flex", f"on a CUDA device it takes heads of at least {NARROWEST}, not {widths}, use 'triton'")


def _run(*vectors: Tensor, **options: Any) -> Tensor:
    if torch.compiler.is_compiling():
        return _written()(*vectors, **options)
    with torch._dynamo.config.patch(recompile_limit=VARIANTS):
        return _compiled(vectors[0].device.type)(*vectors, **options)


def _written() -> Callable[..., Tensor]:
    """torch's function, imported on first use: it takes as long as all of torch."""
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


@cache
def _compiled(device: str) -> Callable[..., Tensor]:
    """On a CPU for each length anew: for lengths that vary, torch 2.15 writes C++ that does not compile."""
    return torch.compile(_written(), fullgraph=True, dynamic=False if device == "cpu" else None)


def _broadcast(pairs: Tensor) -> Callable[..., Tensor]:
    """One entry of a tensor that broadcasts to b h n m.

    It is indexed along what varies only: from an index times zero, torch 2.15 writes C++ that does not compile.
    """
    varying = [axis for axis, size in enumerate(pairs.shape) if size > 1]
    squeezed = pairs.squeeze()

    def entry(b: Tensor, h: Tensor, n: Tensor, m: Tensor) -> Tensor:
        place = (b, h, n, m)
        if not varying:
            return squeezed.clone()  # a program may not give out what it was given
        return squeezed[tuple(place[axis] for axis in varying)]

    return entry


def _adding(bias: Tensor) -> Callable[..., Tensor]:
    entry = _broadcast(bias)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, n: Tensor, m: Tensor) -> Tensor:
        return score + entry(b, h, n, m)

    return score_mod


def _blocks(mask: Tensor, query: Tensor, key: Tensor) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    samples, heads = (size if size > 1 else None for size in mask.shape[:2])
    return create_block_mask(_broadcast(mask), samples, heads, query.shape[2], key.shape[2], device=query.device)
