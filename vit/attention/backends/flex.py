"""torch's FlexAttention: a kernel compiled for the given mask and bias, which skips blocks that the mask excludes.

It is compiled on first use for every combination of type, heads, widths, mask and bias, and again when the number of
tokens changes (on a CPU, at every change): seconds on a CUDA device, most of a minute on a CPU. Dong et al. 2024.
Notation: see `core.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vit.attention.backends.options import AttentionOptions, Refused, cast_by_autocast, dead_rows

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MIN_WIDTH = 16
"""Narrowest head that a CUDA device's matrix units take."""
MAX_COMPILED = 256
"""Kernels that one process may compile. Beyond that, torch would materialize the map; here it fails instead."""


def flex(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
    query, key, factor = options.inner_product("flex").vectors(query, key, options.scale)
    query, key, value = cast_by_autocast(query, key, value)
    _check_supported(query, key, value, options)
    bias = options.bias
    if not torch.is_grad_enabled():  # on a CPU, it refuses tensors that require a gradient even then
        query, key, value = query.detach(), key.detach(), value.detach()
        bias = None if bias is None else bias.detach()
    dead = None if options.mask is None else dead_rows(options.mask)
    arguments: dict[str, Any] = {
        "score_mod": None if bias is None else _score_mod(bias),
        "block_mask": None if options.mask is None or dead is None else _block_mask(options.mask | dead, query, key),
        "scale": float(factor),
        "enable_gqa": query.shape[1] != key.shape[1],
    }
    if torch.compiler.is_compiling():
        attended = _flex_attention()(query, key, value, **arguments)
    else:
        with torch._dynamo.config.patch(recompile_limit=MAX_COMPILED):
            attended = _compiled(query.device.type)(query, key, value, **arguments)
    return attended if dead is None else attended.masked_fill(dead, 0.0)


def _check_supported(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> None:
    vectors = (query, key, value)
    if options.dropout > 0:
        raise Refused("flex", "FlexAttention has no dropout, use 'matmul'")
    if query.device.type not in ("cpu", "cuda"):
        raise Refused("flex", f"it is tried on CPU and CUDA devices, not on {query.device.type!r}, use 'matmul'")
    if len({tensor.dtype for tensor in vectors}) > 1 or query.dtype not in DTYPES:
        found = ", ".join(sorted({str(tensor.dtype) for tensor in vectors}))
        raise Refused("flex", f"it takes one type, float32, bfloat16 or float16, not {found}, use 'reference'")
    if 0 in (*query.shape, *key.shape, *value.shape):
        raise Refused("flex", "it takes no empty tensors, use 'matmul'")
    learned = (*vectors, options.bias) if options.bias is not None else vectors
    if query.device.type == "cpu" and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in learned):
        raise Refused("flex", "FlexAttention has no gradients on a CPU, use 'sdpa'")
    if query.device.type == "cuda" and min(query.shape[-1], value.shape[-1]) < MIN_WIDTH:
        widths = f"{query.shape[-1]} and values of {value.shape[-1]}"
        raise Refused("flex", f"on a CUDA device it takes heads of at least {MIN_WIDTH}, not {widths}, use 'triton'")


def _flex_attention() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention  # imported on first use: as slow as all of torch

    return flex_attention


@cache
def _compiled(device: str) -> Callable[..., Tensor]:
    # On a CPU one kernel per length: for dynamic lengths, torch 2.15 writes C++ that does not compile.
    return torch.compile(_flex_attention(), fullgraph=True, dynamic=False if device == "cpu" else None)


def _entry_reader(tensor: Tensor) -> Callable[..., Tensor]:
    """A function from indices b, h, n, m to that entry of a tensor that broadcasts to b h n m."""
    # Dimensions of 1 are squeezed: from an index times zero, torch 2.15 writes C++ that does not compile.
    varying = [axis for axis, size in enumerate(tensor.shape) if size > 1]
    squeezed = tensor.squeeze()

    def entry(b: Tensor, h: Tensor, n: Tensor, m: Tensor) -> Tensor:
        index = (b, h, n, m)
        if not varying:
            return squeezed.clone()  # a compiled function may not return its input
        return squeezed[tuple(index[axis] for axis in varying)]

    return entry


def _score_mod(bias: Tensor) -> Callable[..., Tensor]:
    entry = _entry_reader(bias)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, n: Tensor, m: Tensor) -> Tensor:
        return score + entry(b, h, n, m)

    return score_mod


def _block_mask(mask: Tensor, query: Tensor, key: Tensor) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    samples, heads = (size if size > 1 else None for size in mask.shape[:2])
    return create_block_mask(_entry_reader(mask), samples, heads, query.shape[2], key.shape[2], device=query.device)
