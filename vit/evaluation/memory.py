"""The most memory that classifying a batch takes at once, and by which meter it was read.

On CUDA the allocator keeps count itself. Elsewhere the tensors that live during a pass are counted; what a kernel takes
and gives back within one operation is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from vit.evaluation.evaluate import evaluating

CUDA_METER = "torch.cuda.max_memory_allocated"
TENSOR_METER = "tensors alive during the pass; scratch memory inside a kernel is not seen"


@dataclass(frozen=True)
class PeakMemory:
    """Bytes."""

    weights: int
    """Parameters and buffers."""
    activations: int
    """The most at once beside them, the batch of images included."""
    meter: str

    @property
    def total(self) -> int:
        return self.weights + self.activations


def inference_memory(
    model: nn.Module,
    image_size: tuple[int, int],
    *,
    batch_size: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> PeakMemory:
    """One forward pass of a model that is on `device`, without gradients.

    On CUDA the first pass, which may keep work space for good, is not the one that is measured.
    """
    weights = storages(model)
    of_weights = sum(tensor.untyped_storage().nbytes() for tensor in weights.values())
    with evaluating(model), torch.no_grad(), autocast():
        if device.type == "cuda":
            return PeakMemory(of_weights, _cuda_peak(model, (batch_size, 3, *image_size), device), CUDA_METER)
        with LiveTensors(set(weights)) as meter:
            model(torch.rand(batch_size, 3, *image_size, device=device))
    return PeakMemory(of_weights, meter.peak, TENSOR_METER)


def storages(model: nn.Module) -> dict[int, Tensor]:
    """The model's weights and buffers, by what identifies their memory."""
    return {tensor.untyped_storage()._cdata: tensor for tensor in (*model.parameters(), *model.buffers())}


def _cuda_peak(model: nn.Module, shape: tuple[int, ...], device: torch.device) -> int:
    model(torch.rand(shape, device=device))
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    model(torch.rand(shape, device=device))
    return torch.cuda.max_memory_allocated(device) - before


class LiveTensors(TorchDispatchMode):
    """Counts the storages that operations make, each once, until it is freed; `peak` is the most bytes at a time.

    `known`: those that are not counted, as `storages` gives them.
    """

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self._known = known
        self._live = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._note, result)
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size
