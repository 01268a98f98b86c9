"""Runs any model over an evaluation set, every sample exactly once, in any number of processes.

One path for every model and every split, during training and after it. This room does not know how the model
was trained, and computes no number from the answers (`metrics` does).
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
    """The `gather` of a single process: what it has is all there is."""
    return tensor


def predict(
    model: nn.Module,
    loader: EvalLoader,
    class_names: list[str],
    *,
    device: torch.device,
    autocast: Autocast = nullcontext,
    gather: Gather = one_process,
    progress: Callable[[int], None] | None = None,
) -> Predictions:
    """The model's logits for the whole split, the same on every process.

    `gather` joins tensors of different lengths over processes. They may hold different numbers of batches, so
    a `DistributedDataParallel` wrapper, which broadcasts buffers at every forward pass, is stepped around, and a
    sharded model, whose parts are exchanged at every forward pass, sees blank images where others have batches left.
    `progress` is told the size of each batch. ValueError: the model has another number of classes than
    `class_names`. AssertionError: samples were missed or seen twice; it names them.
    """
    if isinstance(model, DistributedDataParallel):
        model = model.module
    indices, labels, logits = collect(
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


def collect(
    model: nn.Module,
    compute: Callable[[Tensor], Tensor],
    loader: EvalLoader,
    *,
    device: torch.device,
    autocast: Autocast = nullcontext,
    gather: Gather = one_process,
    progress: Callable[[int], None] | None = None,
    width: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices (n,), labels (n,) and `compute(normalised images)` float32 (n, c), on the CPU, sorted by index.

    The model is in evaluation mode meanwhile, and every submodule in its own mode afterwards. `width`: the c
    that is expected; a process without a single sample needs it to take part.
    """
    indices, labels = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.int64)]
    outputs = [] if width is None else [torch.zeros(0, width, device=device)]
    sharded = is_sharded(model)
    # FSDP keeps the buffers of its first pass, and could not train with those of the inference mode
    no_gradient = torch.no_grad if sharded else torch.inference_mode
    with evaluating(model):
        for batch in _in_step(loader, device, gather) if sharded else loader:
            if len(batch.images) == 0:  # every image of it is broken
                continue
            images = normalize(batch.images.to(device, non_blocking=device.type == "cuda"), loader.preprocessing)
            with no_gradient(), autocast():
                output = compute(images)
            _check_width(output, width)
            # a copy: a compiled model may write its next answers where these are
            outputs.append(output[: len(batch.labels)].to(torch.float32, copy=True))
            del output
            indices.append(batch.indices)
            labels.append(batch.labels)
            if progress is not None:
                progress(len(batch.labels))
    columns = (torch.cat(indices).to(device), torch.cat(labels).to(device), torch.cat(outputs))
    found, true, answers = (gather(column).cpu() for column in columns)
    order = found.argsort(stable=True)
    return found[order], true[order], answers[order]


def check_seen_once(indices: Tensor, loader: EvalLoader, *, device: torch.device, gather: Gather = one_process) -> int:
    """Number of broken samples over all processes. AssertionError: some sample is missing or doubled."""
    num_broken = int(gather(torch.tensor([loader.num_broken], device=device)).sum())
    check_each_once(indices, loader.split.indices, num_broken)
    return num_broken


def check_each_once(indices: Tensor, expected: Tensor, num_broken: int = 0) -> None:
    """AssertionError: not every one of the `expected` indices was seen, once; or some other was."""
    values, times = indices.unique(return_counts=True)
    if (times > 1).any():
        raise AssertionError(f"samples seen more than once: indices {_some(values[times > 1])}")
    if (strangers := values[~torch.isin(values, expected)]).numel():
        raise AssertionError(f"samples that are not in the split: indices {_some(strangers)}")
    if len(indices) + num_broken != len(expected):
        missing = expected[~torch.isin(expected, values)]
        raise AssertionError(
            f"{len(indices)} samples seen and {num_broken} broken of {len(expected)}: "
            f"no answer for indices {_some(missing)}"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every submodule is back in the mode it had, also one that was frozen."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _in_step(loader: EvalLoader, device: torch.device, gather: Gather) -> Iterator[EvalBatch]:
    """As many batches on every process: after its last one a process gets a blank image without a label."""
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


def _check_width(output: Tensor, width: int | None) -> None:
    if width is not None and output.shape[1:] != (width,):
        found = "x".join(str(size) for size in output.shape[1:])
        raise ValueError(f"model.num_classes: {found} is not valid: the data has {width} classes")


def _some(indices: Tensor, limit: int = 10) -> str:
    shown = ", ".join(str(index) for index in indices[:limit].tolist())
    return shown if len(indices) <= limit else f"{shown} and {len(indices) - limit} more"
