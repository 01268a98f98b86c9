"""Linear layers that only answer: their weights are laid out for the processor's products once, not at every call.

The products are oneDNN's, by the operators that torch's compiler puts into its frozen programs. Knows no model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """What `linear` computes, `... i -> ... o`, from a copy of its weights; for vectors of their type, on a CPU.

    ValueError where `torch.compile` is at work, where a gradient is asked for, and for a `state_dict`.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            raise ValueError("torch.compile lays weights out itself: compile for_inference(model, packed=False)")
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError("a packed model gives no gradients: ask the model that it was made of")
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    def _save_to_state_dict(self, *_: Any) -> None:
        raise ValueError("a packed model is not saved: save the model that it was made of")


def pack(model: nn.Module) -> None:
    """Packs every linear layer of `model`, in place."""
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if type(part) is nn.Linear:
                setattr(module, name, PackedLinear(part).train(part.training))


def packing_pays(dtype: torch.dtype) -> bool:
    """Whether packed products are the faster ones on this processor (`LOG.md`).

    In bfloat16 they are wherever oneDNN has it; in float32 on AMD's processors, which MKL does not serve as well.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and "AMD" in str(torch.cpu.get_capabilities().get("cpu_name"))
