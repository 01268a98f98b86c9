"""Linear layers that only answer: their weights are laid out for the processor's products once, not at every call.

The products are oneDNN's, by the operators that torch's compiler puts into its frozen programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from vit.layers.feedforward import FeedForward
from vit.linear import is_plain
from vit.processor import MULTIPLIES_BFLOAT16, processor_name


class PackedLinear(nn.Module):
    """What `linear` computes, `... i -> ... o`, from a copy of its weights; for vectors of their type, on a CPU.

    `then_gelu`: and GELU (erf) of it, before it is rounded. It has no parameters. `torch.compile` goes around it, and
    refuses it where it may not. ValueError for vectors of another type or elsewhere, where a gradient is asked for,
    where it is to be copied, saved or filled, and where it is to have another type or device; a model that it is a
    part of may then be half changed.
    """

    def __init__(self, linear: nn.Linear, *, then_gelu: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype = linear.weight.dtype
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = None if linear.bias is None else linear.bias.detach().clone()
        self.then = "gelu" if then_gelu else "none"

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            _refuse("is not compiled: compile for_inference(…, packed=False)")
        if x.dtype != self.dtype:
            _refuse(f"takes {self.dtype}, not {x.dtype}: give it images of that type, without autocast")
        if x.device.type != "cpu":
            _refuse(f"computes on the CPU, not on {x.device.type}: take the model that it was made of")
        if torch.is_grad_enabled() and x.requires_grad:
            _refuse("gives no gradients: call it under torch.inference_mode(), or ask the model that it was made of")
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, self.then, [], "none")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.dtype}, then={self.then}"

    def __getstate__(self) -> Never:
        _refuse("is neither copied nor saved: take the model that it was made of")

    def _save_to_state_dict(self, *_: Any) -> None:
        _refuse("has no state_dict: take that of the model that it was made of")

    def _load_from_state_dict(self, *_: Any) -> None:
        _refuse("is not filled with other weights: fill the model that it was made of")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PackedLinear:  # noqa: ARG002
        probe = fn(torch.empty(0, dtype=self.dtype))
        if (probe.dtype, probe.device.type) != (self.dtype, "cpu"):
            _refuse(f"stays {self.dtype} on the CPU: make another of the model that it was made of")
        return self


def _refuse(what: str) -> Never:
    raise ValueError(f"a packed model {what}")


def pack(model: nn.Module) -> None:
    """Packs, in place, every plain linear layer of `model` with plain weights, and with it the GELU behind it."""
    for module in list(model.modules()):
        if isinstance(module, FeedForward) and module.activation is gelu and _is_packable(module.expand):
            module.expand = PackedLinear(module.expand, then_gelu=True).train(module.training)  # type: ignore[assignment]
            module.activation = _as_it_is
        for name, part in list(module.named_children()):
            if _is_packable(part):
                setattr(module, name, PackedLinear(part).train(module.training))


def _is_packable(part: nn.Module) -> TypeGuard[nn.Linear]:
    """Weights of another type, such as quantised ones, have products of their own."""
    return is_plain(part) and type(part.weight) is nn.Parameter


def _as_it_is(hidden: Tensor) -> Tensor:
    """What is left of an activation that its layer has taken over."""
    return hidden


def packing_pays(dtype: torch.dtype) -> bool:
    """Whether packed products are the faster ones on this processor, as far as was measured (`LOG.md`).

    In bfloat16 where it multiplies that itself (Zen 4), in float32 on AMD's (Zen 4), which MKL serves worse.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return MULTIPLIES_BFLOAT16
    return dtype == torch.float32 and "AMD " in processor_name()
