"""Tensors that are sharded over processes (FSDP2: torch.distributed.fsdp.fully_shard), and their full versions.

Every process must call these functions, in the same order: they communicate. A model or tensor that is not sharded
passes through unchanged.
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


def is_shard(tensor: Tensor) -> TypeGuard[DTensor]:
    # not imported here, which takes as long as half of torch: where nobody imported it, there is no DTensor
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor gathered from all processes, on its device."""
    return tensor.full_tensor() if is_shard(tensor) else tensor


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """This process's shard of a full tensor, split as `other` is. Without communication: every process has it."""
    if not is_shard(other):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    split = distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)
    return split.clone()  # not a view, which would keep the whole in memory


def local_shard(tensor: Tensor) -> Tensor:
    """This process's shard, in the same memory, for elementwise arithmetic."""
    return tensor.to_local() if is_shard(tensor) else tensor


def gather_full(tensors: dict[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Full tensors, each moved to the CPU as it is gathered; without `keep`, the sharded ones are dropped here."""
    gathered = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor)
        if keep or full is tensor:
            gathered[name] = tensor if full is tensor else full.cpu()
    return gathered


def load_full(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """`model.load_state_dict` of full tensors."""
    current = model.state_dict()
    model.load_state_dict({name: shard_like(value, current.get(name, value)) for name, value in tensors.items()})
