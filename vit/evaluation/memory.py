"""Peak memory of inference on a batch.

On CUDA the allocator measures it. Elsewhere the tensors alive during a pass are counted, which misses scratch memory
that a kernel takes and frees within one operation.
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
from vit.layers.packed import InferenceLinear

CUDA_METER = "torch.cuda.max_memory_allocated"
TENSOR_METER = "tensors alive during the pass; scratch memory inside a kernel is not seen"


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory in bytes."""

    weights: int
    """Parameters and buffers, and what the layers of an inference-only copy keep in their place."""
    activations: int
    """Peak besides the weights, including the batch of images."""
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
    """Measure one forward pass of a model that is on `device`, without gradients.

    On CUDA the second pass is measured, because the first may allocate workspace for good.
    """
    weights = weight_storages(model)
    weight_bytes = sum(tensor.untyped_storage().nbytes() for tensor in weights.values())
    weight_bytes += sum(layer.nbytes for layer in model.modules() if isinstance(layer, InferenceLinear))

    def forward() -> None:
        with autocast():  # until its end autocast keeps 16-bit copies of the weights, which belong to the pass
            model(torch.rand(batch_size, 3, *image_size, device=device))

    with evaluating(model), torch.no_grad():
        if device.type == "cuda":
            forward()
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            forward()
            return PeakMemory(weight_bytes, torch.cuda.max_memory_allocated(device) - before, CUDA_METER)
        peak = peak_memory_of(forward, set(weights))
    return PeakMemory(weight_bytes, peak, TENSOR_METER)


def weight_storages(model: nn.Module) -> dict[int, Tensor]:
    """Map the identity of each storage to a weight or buffer in it."""
    return {tensor.untyped_storage()._cdata: tensor for tensor in (*model.parameters(), *model.buffers())}


def peak_memory_of(work: Callable[[], object], known: set[int]) -> int:
    """Measure the peak in bytes of the tensors that `work` creates; storages in `known` are not counted."""
    with LiveTensors(set(known)) as meter:
        work()
    return meter.peak


class LiveTensors(TorchDispatchMode):
    """Counts the bytes of storages that operations create, until they are freed; `peak` is their maximum.

    `known`: identities of storages that are not counted, as `weight_storages` gives them.
    """

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self._known = known
        self._live = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._add, result)
        return result

    def _add(self, tensor: Tensor) -> None:
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
