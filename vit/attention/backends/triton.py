"""A fused kernel of our own, in Triton: memory linear in tokens, forward and backward, for any mask and bias.

Beside what `sdpa` takes, it skips what a mask forbids block by block, learns a bias without giving up fusion, and
draws dropout from `rng`, the same that `reference` draws. It owns what is refused and the gradient; the programs are in
`triton_kernels.py`, which is imported on first use. Dao 2023 (FlashAttention-2). Letters: see `attend.py`.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vit.attention.backends.request import Refused, Request, cast_by_autocast

if TYPE_CHECKING:
    from vit.attention.backends.triton_blocks import Terms

WIDEST = 256
"""Of a head; a block of wider ones does not fit into a multiprocessor."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OLDEST = (8, 0)
"""Compute capability from which on CUDA devices have the matrix units that the programs use (Ampere)."""


def triton(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    query, key, factor = request.inner_product("triton").vectors(query, key, request.scale)
    query, key, value = cast_by_autocast(query, key, value)
    refuse_device(query.device)
    _refuse_vectors(query, key, value)
    _refuse_request(request)
    state = None if request.rng is None or request.dropout == 0 else request.rng.state
    return _attend(query, key, value, request.mask, request.bias, state, float(factor), request.dropout)[0]


def refuse_device(device: torch.device, instead: str = "sdpa") -> None:
    """`Refused` without triton and, but in its interpreter, off a CUDA device that is new enough; `instead` can."""
    if importlib.util.find_spec("triton") is None:
        raise Refused("triton", f"the package triton is not installed, use {instead!r}")
    from vit.attention.backends.triton_blocks import INTERPRETED

    if INTERPRETED.value:
        return
    if device.type != "cuda":
        reason = f"it runs on CUDA devices and these tensors are on {device.type!r}"
        raise Refused("triton", f"{reason}, use {instead!r}, or set TRITON_INTERPRET=1 before starting, to debug")
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        reason = f"it needs compute capability {OLDEST} and the device has {capability}"
        raise Refused("triton", f"{reason}, use {instead!r}")


def _refuse_vectors(query: Tensor, key: Tensor, value: Tensor) -> None:
    dtypes = {query.dtype, key.dtype, value.dtype}
    if len(dtypes) > 1 or query.dtype not in DTYPES:
        found = ", ".join(sorted(map(str, dtypes)))
        raise Refused("triton", f"it takes one type, float32, bfloat16 or float16, not {found}, use 'reference'")
    if max(query.shape[-1], value.shape[-1]) > WIDEST:
        widths = f"{query.shape[-1]} and values of {value.shape[-1]}"
        raise Refused("triton", f"it takes heads of at most {WIDEST}, not {widths}, use 'sdpa'")


def _refuse_request(request: Request) -> None:
    if request.dropout > 0 and request.rng is None:
        raise Refused("triton", "it draws dropout from rng only and none is given, use 'sdpa'")
    learns_bias = request.bias is not None and request.bias.requires_grad and torch.is_grad_enabled()
    if learns_bias and torch.are_deterministic_algorithms_enabled():
        raise Refused("triton", "it sums a bias's gradient in no fixed order, use 'matmul'")


@torch.library.custom_op("vit::triton_attention", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor,
    mask: Tensor | None, bias: Tensor | None, state: Tensor | None, factor: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The averages, b h n v, and of every row the logarithm of its sum, b h n.

    An operator of torch rather than a function of autograd: `torch.compile` takes it whole, interpreted or not.
    """
    from vit.attention.backends.triton_kernels import forward

    out, log_sum = _empty(query, key, value)
    forward(query, key, value, _terms(query, key, mask, bias, state, factor, dropout), out, log_sum)
    return out, log_sum


@_attend.register_fake
def _empty(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """The results, not yet filled. Heads stand after tokens in memory, as the layer that comes next joins them."""
    b, h, n, _d = query.shape
    out = query.new_empty(b, n, h, value.shape[-1]).transpose(1, 2)  # b h n v
    return out, query.new_empty(b, h, n, dtype=torch.float32)


@torch.library.custom_op("vit::triton_attention_gradients", mutates_args=())
def _gradients(
    out_gradient: Tensor, out: Tensor, log_sum: Tensor, query: Tensor, key: Tensor, value: Tensor,
    mask: Tensor | None, bias: Tensor | None, state: Tensor | None, factor: float, dropout: float, learns_bias: bool,
) -> list[Tensor]:  # fmt: skip
    """Of query, key and value; and of the bias, where it learns: in float32, for many queries add to one number."""
    from vit.attention.backends.triton_blocks import strided
    from vit.attention.backends.triton_kernels import backward

    gradients = _empty_gradients(out_gradient, out, log_sum, query, key, value, mask, bias, state, 0, 0, learns_bias)
    of_bias = strided(gradients[3].expand(_full(query, key))) if learns_bias else None
    terms = _terms(query, key, mask, bias, state, factor, dropout)
    backward(query, key, value, terms, out, log_sum, out_gradient, gradients[:3], of_bias)
    return gradients


@_gradients.register_fake
def _empty_gradients(
    _out_gradient: Tensor, _out: Tensor, _log_sum: Tensor, query: Tensor, key: Tensor, value: Tensor,
    _mask: Tensor | None, bias: Tensor | None, _state: Tensor | None,
    _factor: float, _dropout: float, learns_bias: bool,
) -> list[Tensor]:  # fmt: skip
    of_vectors = [tensor.new_empty(tensor.shape) for tensor in (query, key, value)]
    assert bias is not None or not learns_bias
    of_bias = [bias.new_zeros(bias.shape, dtype=torch.float32)] if bias is not None and learns_bias else []
    return of_vectors + of_bias


def _keep_for_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, bias, state, ctx.factor, ctx.dropout = inputs
    ctx.save_for_backward(*output, query, key, value, mask, bias, state)


def _differentiate(ctx: Any, out_gradient: Tensor, _log_sum_gradient: Tensor) -> tuple[Tensor | None, ...]:
    learns_bias = ctx.needs_input_grad[4]
    gradients = _gradients(out_gradient, *ctx.saved_tensors, ctx.factor, ctx.dropout, learns_bias)
    of_bias = gradients[3].to(ctx.saved_tensors[6].dtype) if learns_bias else None
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
    """Mask and bias stand for every pair by steps of 0, not in memory."""
    from vit.attention.backends.triton_blocks import Terms, strided

    full = _full(query, key)
    allowed, added = (None if term is None else strided(term.expand(full)) for term in (mask, bias))
    return Terms(factor, allowed, added, state, dropout)
