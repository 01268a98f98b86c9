"""A fused kernel in Triton: memory linear in tokens, forward and backward, for any mask and bias.

Unlike `sdpa` it skips blocks that a mask excludes, fuses the gradient of a learned bias, and draws the same dropout
from `rng` as `reference`. Checks and autograd are here; the kernels are in `triton_kernels.py`, which is imported on
first use. Dao 2023 (FlashAttention-2). Notation: see `core.py`.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vit.attention.backends.options import AttentionOptions, Refused, cast_by_autocast

if TYPE_CHECKING:
    from vit.attention.backends.triton_blocks import Terms

MAX_WIDTH = 256
"""Widest head; a block of wider ones does not fit into a multiprocessor."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MIN_CAPABILITY = (8, 0)
"""Lowest compute capability with the matrix units that the kernels use (Ampere)."""


def triton(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
    query, key, factor = options.inner_product("triton").vectors(query, key, options.scale)
    query, key, value = cast_by_autocast(query, key, value)
    check_device(query.device)
    _check_supported(query, key, value, options)
    state = None if options.rng is None or options.dropout == 0 else options.rng.state
    return _attend(query, key, value, options.mask, options.bias, state, float(factor), options.dropout)[0]


def check_device(device: torch.device, instead: str = "sdpa") -> None:
    """`Refused` without triton and, except in its interpreter, without a recent CUDA device; `instead` is suggested."""
    if importlib.util.find_spec("triton") is None:
        raise Refused("triton", f"the package triton is not installed, use {instead!r}")
    from vit.attention.backends.triton_blocks import INTERPRETED

    if INTERPRETED.value:
        return
    if device.type != "cuda":
        reason = f"it runs on CUDA devices and these tensors are on {device.type!r}"
        raise Refused("triton", f"{reason}, use {instead!r}, or set TRITON_INTERPRET=1 before starting, to debug")
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        reason = f"it needs compute capability {MIN_CAPABILITY} and the device has {capability}"
        raise Refused("triton", f"{reason}, use {instead!r}")


def _check_supported(query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> None:
    dtypes = {query.dtype, key.dtype, value.dtype}
    if len(dtypes) > 1 or query.dtype not in DTYPES:
        found = ", ".join(sorted(map(str, dtypes)))
        raise Refused("triton", f"it takes one type, float32, bfloat16 or float16, not {found}, use 'reference'")
    if max(query.shape[-1], value.shape[-1]) > MAX_WIDTH:
        widths = f"{query.shape[-1]} and values of {value.shape[-1]}"
        raise Refused("triton", f"it takes heads of at most {MAX_WIDTH}, not {widths}, use 'sdpa'")
    if options.dropout > 0 and options.rng is None:
        raise Refused("triton", "it draws dropout from rng only and none is given, use 'sdpa'")
    bias_needs_grad = options.bias is not None and options.bias.requires_grad and torch.is_grad_enabled()
    if bias_needs_grad and torch.are_deterministic_algorithms_enabled():
        raise Refused("triton", "it sums a bias's gradient in no fixed order, use 'matmul'")


@torch.library.custom_op("vit::triton_attention", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor,
    mask: Tensor | None, bias: Tensor | None, state: Tensor | None, factor: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The averages, b h n v, and the logarithm of every row's sum, b h n."""
    # A custom operator rather than an autograd.Function: `torch.compile` does not trace into it.
    from vit.attention.backends.triton_kernels import forward

    out, log_sum = _empty(query, key, value)
    forward(query, key, value, _terms(query, key, mask, bias, state, factor, dropout), out, log_sum)
    return out, log_sum


@_attend.register_fake
def _empty(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """Uninitialized results. In memory, heads follow tokens, so the output projection joins them without a copy."""
    b, h, n, _d = query.shape
    out = query.new_empty(b, n, h, value.shape[-1]).transpose(1, 2)  # b h n v
    return out, query.new_empty(b, h, n, dtype=torch.float32)


@torch.library.custom_op("vit::triton_attention_gradients", mutates_args=())
def _gradients(
    out_gradient: Tensor, out: Tensor, log_sum: Tensor, query: Tensor, key: Tensor, value: Tensor,
    mask: Tensor | None, bias: Tensor | None, state: Tensor | None,
    factor: float, dropout: float, bias_needs_grad: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of query, key, value, and of a learned bias in float32, as many queries add to one number."""
    from vit.attention.backends.triton_blocks import strided
    from vit.attention.backends.triton_kernels import backward

    gradients = _empty_gradients(
        out_gradient, out, log_sum, query, key, value, mask, bias, state, 0, 0, bias_needs_grad
    )
    of_bias = strided(gradients[3].expand(_full(query, key)) if bias_needs_grad else None)
    terms = _terms(query, key, mask, bias, state, factor, dropout)
    backward(query, key, value, terms, out, log_sum, out_gradient, gradients[:3], of_bias)
    return gradients


@_gradients.register_fake
def _empty_gradients(
    _out_gradient: Tensor, _out: Tensor, _log_sum: Tensor, query: Tensor, key: Tensor, value: Tensor,
    _mask: Tensor | None, bias: Tensor | None, _state: Tensor | None,
    _factor: float, _dropout: float, bias_needs_grad: bool,
) -> list[Tensor]:  # fmt: skip
    of_vectors = [tensor.new_empty(tensor.shape) for tensor in (query, key, value)]
    assert bias is not None or not bias_needs_grad
    of_bias = [bias.new_zeros(bias.shape, dtype=torch.float32)] if bias is not None and bias_needs_grad else []
    return of_vectors + of_bias


def _keep_for_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, bias, state, ctx.factor, ctx.dropout = inputs
    ctx.save_for_backward(*output, query, key, value, mask, bias, state)


def _differentiate(ctx: Any, out_gradient: Tensor, _log_sum_gradient: Tensor) -> tuple[Tensor | None, ...]:
    bias_needs_grad = ctx.needs_input_grad[4]
    gradients = _gradients(out_gradient, *ctx.saved_tensors, ctx.factor, ctx.dropout, bias_needs_grad)
    of_bias = gradients[3].to(ctx.saved_tensors[6].dtype) if bias_needs_grad else None
    return *gradients[:3], None, of_bias, None, None, None


def _refuse_second_derivative(_ctx: Any, *_: Tensor) -> None:
    raise Refused("triton", "it has no second derivative, use 'reference'")


_attend.register_autograd(_differentiate, setup_context=_keep_for_gradients)
_gradients.register_autograd(_refuse_second_derivative)


def _full(query: Tensor, key: Tensor) -> tuple[int, int, int, int]:
    b, h, n, _d = query.shape
    return b, h, n, key.shape[2]


def _terms(
    query: Tensor, key: Tensor,
    mask: Tensor | None, bias: Tensor | None, state: Tensor | None, factor: float, dropout: float,
) -> Terms:  # fmt: skip
    """The terms of the kernel; mask and bias are expanded to every pair by strides of 0."""
    from vit.attention.backends.triton_blocks import Terms, strided

    full = _full(query, key)
    allowed, added = (strided(None if term is None else term.expand(full)) for term in (mask, bias))
    return Terms(factor, allowed, added, state, dropout)
