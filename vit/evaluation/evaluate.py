"""Predictions of any model for an evaluation set, each sample exactly once, in any number of processes.

Every evaluation during and after training goes through here; `metrics` computes numbers from the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vit.data.preprocessing import normalize
from vit.evaluation.predictions import Predictions
from vit.sharding import is_sharded

if TYPE_CHECKING:
    from vit.data.loading import EvalBatch, EvalLoader

Autocast = Callable[[], AbstractContextManager[object]]
Gather = Callable[[Tensor], Tensor]


def one_process(tensor: Tensor) -> Tensor:
    """Gather for a single process: return the tensor itself."""
    return tensor


def predict_all(
    model: nn.Module,
    loader: EvalLoader,
    class_names: list[str],
    *,
    device: torch.device,
    autocast: Autocast = nullcontext,
    gather: Gather = one_process,
    progress: Callable[[int], object] | None = None,
) -> Predictions:
    """Compute the model's logits for the whole split, the same on every process.

    `gather` joins tensors of different lengths over processes. Processes may have different numbers of batches, so a
    `DistributedDataParallel` wrapper, which broadcasts buffers at every forward pass, is bypassed, and a sharded model,
    which gathers its weights at every forward pass, gets blank images while others have batches left. `progress`
    receives the size of each batch. ValueError if the model's number of classes is not that of `class_names`.
    AssertionError naming samples that were missed or seen twice.
    """
    if isinstance(model, DistributedDataParallel):
        model = model.module
    indices, labels, logits = collect_outputs(
        model,
        model,
        loader,
        device=device,
        autocast=autocast,
        gather=gather,
        progress=progress,
        width=len(class_names),
    )
    num_broken = check_seen_once(indices, loader, device=device, gather=gather)
    return Predictions(
        indices=indices.numpy(),
        labels=labels.numpy(),
        logits=logits.numpy(),
        class_names=list(class_names),
        num_total=loader.num_total,
        num_broken=num_broken,
    )


def collect_outputs(
    model: nn.Module,
    compute: Callable[[Tensor], Tensor],
    loader: EvalLoader,
    *,
    device: torch.device,
    autocast: Autocast = nullcontext,
    gather: Gather = one_process,
    progress: Callable[[int], object] | None = None,
    width: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Collect indices (n,), labels (n,) and `compute(normalised images)` float32 (n, c), on the CPU, sorted by index.

    The model is in evaluation mode meanwhile; afterwards every submodule is in its previous mode. `width`: the expected
    c, which a process without any sample needs to take part. ValueError if c is another.
    """
    indices, labels = [torch.zeros(0, dtype=torch.int64)], [loader.split.source.labels[:0]]
    outputs = [] if width is None else [torch.zeros(0, width, device=device)]
    sharded = is_sharded(model)
    # FSDP keeps the buffers of its first pass; it could not train with inference tensors.
    no_gradient = torch.no_grad if sharded else torch.inference_mode
    with evaluating(model):
        for batch in _lockstep_batches(loader, device, gather) if sharded else loader:
            if len(batch.images) == 0:  # every image of the batch is broken
                continue
            images = normalize(batch.images.to(device, non_blocking=device.type == "cuda"), loader.preprocessing)
            with no_gradient(), autocast():
                output = compute(images)
            if width is not None and output.shape[1:] != (width,):
                shape = "x".join(str(size) for size in output.shape[1:])
                raise ValueError(f"model.num_classes: {shape} is not valid: the data has {width} classes")
            # A copy, because a compiled model may reuse the memory of its output.
            outputs.append(output[: len(batch.labels)].to(torch.float32, copy=True))
            del output
            indices.append(batch.indices)
            labels.append(batch.labels)
            if progress is not None:
                progress(len(batch.labels))
    columns = (torch.cat(indices).to(device), torch.cat(labels).to(device), torch.cat(outputs))
    all_indices, all_labels, all_outputs = (gather(column).cpu() for column in columns)
    order = all_indices.argsort(stable=True)
    return all_indices[order], all_labels[order], all_outputs[order]


def check_seen_once(indices: Tensor, loader: EvalLoader, *, device: torch.device, gather: Gather = one_process) -> int:
    """Count broken samples over all processes. AssertionError if a sample is missing or seen twice."""
    num_broken = int(gather(torch.tensor([loader.num_broken], device=device)).sum())
    check_each_once(indices, loader.split.indices, num_broken)
    return num_broken


def check_each_once(indices: Tensor, expected: Tensor, num_broken: int = 0) -> None:
    """Check that exactly the `expected` indices were seen, once each; else AssertionError."""
    values, times = indices.unique(return_counts=True)
    if (times > 1).any():
        raise AssertionError(f"samples seen more than once: indices {_first_few(values[times > 1])}")
    if (unexpected := values[~torch.isin(values, expected)]).numel():
        raise AssertionError(f"samples that are not in the split: indices {_first_few(unexpected)}")
    if len(indices) + num_broken != len(expected):
        missing = expected[~torch.isin(expected, values)]
        raise AssertionError(
            f"{len(indices)} samples seen and {num_broken} broken of {len(expected)}: "
            f"missing indices {_first_few(missing)}"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, then restore the mode of every submodule, frozen ones included."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _lockstep_batches(loader: EvalLoader, device: torch.device, gather: Gather) -> Iterator[EvalBatch]:
    """Yield equally many batches on every process: after its last one, a process gets blank images without labels."""
    from vit.data.loading import EvalBatch

    height, width = loader.preprocessing.image_size
    nothing = torch.zeros(0, dtype=torch.int64)
    blank = EvalBatch(torch.zeros(1, 3, height, width, dtype=torch.uint8), nothing, nothing)
    batches = iter(loader)
    while True:
        batch = next(batches, None)
        if not gather(torch.tensor([int(batch is not None)], device=device)).any():
            return
        yield blank if batch is None else batch


def _first_few(indices: Tensor, limit: int = 10) -> str:
    shown = ", ".join(str(index) for index in indices[:limit].tolist())
    return shown if len(indices) <= limit else f"{shown} and {len(indices) - limit} more"
