"""Tensors that several processes hold a part of each (FSDP2: torch.distributed.fsdp.fully_shard), and their whole.

Every process must call these functions, in the same order: they exchange parts. A model or tensor that is not split
passes through unchanged. This room does not know who splits, nor why.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(model: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(model, fsdp.FSDPModule)


def is_part(tensor: Tensor) -> TypeGuard[DTensor]:
    """Where torch's module of them was never imported (it takes as long as half of torch), there is none."""
    parts = sys.modules.get("torch.distributed.tensor")
    return parts is not None and isinstance(tensor, parts.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """The tensor joined from all processes, on its device."""
    return tensor.full_tensor() if is_part(tensor) else tensor


def part_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Of a whole tensor, the same on every process, the part that this one has of `other`; nothing is sent."""
    if not is_part(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    split = distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)
    return split.clone()  # not a view, which would keep the whole in memory


def local(tensor: Tensor) -> Tensor:
    """This process's part, in the same memory: for arithmetic element by element."""
    return tensor.to_local() if is_part(tensor) else tensor


def gather_whole(tensors: dict[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Every tensor whole; what was split goes to the CPU, one after another, where `keep`, and is dropped elsewhere."""
    gathered = {}
    for name, tensor in tensors.items():
        joined = whole(tensor)
        if keep or joined is tensor:
            gathered[name] = tensor if joined is tensor else joined.cpu()
    return gathered


def load_whole(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """`model.load_state_dict` of whole tensors."""
    own = model.state_dict()
    model.load_state_dict({name: part_like(value, own.get(name, value)) for name, value in tensors.items()})
