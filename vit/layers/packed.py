"""Linear layers for inference: their weights are packed for the processor once, not at every call.

The products are oneDNN's, through the operators that torch's compiler uses in frozen models. In a program of
`torch.compile` each is one operator, `vit::inference_product`, which finds its layer by a number: the compiler cannot
hold packed weights.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Never, TypeGuard
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from vit.compiling import compiles_here
from vit.layers.feedforward import FeedForward
from vit.linear import is_plain
from vit.processor import AMD, HAS_BFLOAT16, processor_vendor

FUSES_GELU = "AVX512" in torch.backends.cpu.get_cpu_capability()
"""True where a product with GELU behind it takes less time than both one after the other (`LOG.md`)."""
_layers: WeakValueDictionary[int, InferenceLinear] = WeakValueDictionary()
_numbers = count()


class InferenceLinear(nn.Module):
    """A linear layer with prepared weights, `... i -> ... o` on a CPU.

    The layer has no parameters. ValueError for other devices, for gradients, in `torch.export`, and on any attempt to
    copy, save, load, cast or move the layer; the model that contains it may then be partly changed.
    """

    takes_every_type = False

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.number = next(_numbers)
        _layers[self.number] = self
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.dtype = linear.weight.dtype
        self.bias = None if linear.bias is None else linear.bias.detach().clone()

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and vectors that it keeps, from their sizes: packed weights have no storage to ask."""
        kept = [value for value in vars(self).values() if isinstance(value, Tensor)]
        return sum(tensor.numel() * tensor.dtype.itemsize for tensor in kept)

    def multiply(self, x: Tensor) -> Tensor:
        """The product with packed weights, which the compiler does not look into; of type `result_type`."""
        raise NotImplementedError

    def result_type(self) -> torch.dtype:
        return self.dtype

    def multiply_apart(self, x: Tensor) -> Tensor:
        """`multiply`, as one operator while the compiler traces."""
        if torch.compiler.is_compiling():
            product: Tensor = torch.ops.vit.inference_product(x, self.number, self.out_features, self.result_type())
            return product
        return self.multiply(x)

    def product(self, x: Tensor) -> Tensor:
        """The layer's result for vectors that it takes."""
        return self.multiply_apart(x)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting() and not compiles_here():
            _refuse("is not exported: export the original model")
        if x.dtype != self.dtype and not self.takes_every_type:
            _refuse(f"takes {self.dtype}, not {x.dtype}: give it images of that type, without autocast")
        if x.device.type != "cpu":
            _refuse(f"computes on the CPU, not on {x.device.type}: use the original model")
        if torch.is_grad_enabled() and x.requires_grad:
            _refuse("gives no gradients: call it under torch.inference_mode(), or use the original model")
        return self.product(x)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.dtype}"

    def __getstate__(self) -> Never:
        _refuse("can be neither copied nor saved: use the original model")

    def _save_to_state_dict(self, *_: Any) -> None:
        _refuse("has no state_dict: use that of the original model")

    def _load_from_state_dict(self, *_: Any) -> None:
        _refuse("cannot load weights: load them into the original model")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> InferenceLinear:  # noqa: ARG002
        probe = fn(torch.empty(0, dtype=self.dtype))
        if (probe.dtype, probe.device.type) != (self.dtype, "cpu"):
            _refuse(f"stays {self.dtype} on the CPU: make another one from the original model")
        return self


torch.library.define("vit::inference_product", "(Tensor x, int layer, int out_features, ScalarType dtype) -> Tensor")


@torch.library.impl("vit::inference_product", "CPU")
def _inference_product(x: Tensor, layer: int, out_features: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    found = _layers.get(layer)
    if found is None:
        _refuse("has been deleted: compile another one")
    return found.multiply(x)


torch.library.register_fake(
    "vit::inference_product",
    lambda x, layer, out_features, dtype: x.new_empty(*x.shape[:-1], out_features, dtype=dtype),  # noqa: ARG005
)


class PackedLinear(InferenceLinear):
    """`linear(x)` from a packed copy of its weights, for vectors of their type: ValueError for others.

    With `fuse_gelu`, GELU (erf) follows; with AVX-512 it is applied before the product is rounded.
    """

    def __init__(self, linear: nn.Linear, *, fuse_gelu: bool = False) -> None:
        super().__init__(linear)
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.activation = "gelu" if fuse_gelu else "none"

    def multiply(self, x: Tensor) -> Tensor:
        fused = self.activation if FUSES_GELU else "none"
        result: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.packed, self.bias, fused, [], "none")
        if fused != self.activation:
            gelu(result, out=result)  # type: ignore[call-arg]  # torch's stub lacks it
        return result

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"


def _refuse(what: str) -> Never:
    raise ValueError(f"a packed model {what}")


def pack_linear_layers(model: nn.Module) -> None:
    """Pack, in place, every plain linear layer of `model` with plain weights, together with a GELU that follows it."""
    for module in list(model.modules()):
        if isinstance(module, FeedForward) and module.activation is gelu and is_packable(module.fc1):
            module.fc1 = PackedLinear(module.fc1, fuse_gelu=True).train(module.training)  # type: ignore[assignment]
            module.activation = _identity
        for name, part in list(module.named_children()):
            if is_packable(part):
                setattr(module, name, PackedLinear(part).train(module.training))


def is_packable(part: nn.Module) -> TypeGuard[nn.Linear]:
    """True for a plain linear layer with plain weights."""
    # other weight classes, such as quantised ones, implement products of their own
    return is_plain(part) and type(part.weight) is nn.Parameter


def _identity(hidden: Tensor) -> Tensor:
    return hidden


def packing_is_faster(dtype: torch.dtype) -> bool:
    """True where packed products were found faster (`LOG.md`), or the processor is of such a kind.

    With instructions for bfloat16 (measured on Zen 4 and on an Emerald Rapids without AMX), in float32 too; float32 on
    older processors of AMD (Zen 3), where MKL is slower. On an older Xeon with AVX-512 MKL was ahead.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return HAS_BFLOAT16
    return dtype == torch.float32 and (HAS_BFLOAT16 or processor_vendor() == AMD)
