"""Speed from image files to training steps, against other libraries' loaders on the same images.

`bench_data` ends with the augmented batch on the device, `bench_epoch` with the trained weights: ours is the real
training loop, compared with the reference loop around timm's model. Each turn is one complete pass of each over the
same images, so that nothing is decoded ahead in another's time. Settings that only one of them has are refused.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.pipeline_table import CONVENTIONS, OURS, line
from benchmarks.reference_loaders import LOADERS, Batches, LoaderSpec, check_shared
from benchmarks.reference_loop import ReferenceLoop, task_of, timm_model
from benchmarks.timing import (
    PEAK,
    STEP_PASSES,
    ProgressFn,
    compare_with_peak,
    matrix_product,
    quartiles,
    speedups,
    time_interleaved,
)
from benchmarks.unsupported import Unsupported
from vit.config import check, check_positive, nearest
from vit.data.augmented import AugmentingLoader
from vit.data.loading import TrainLoader
from vit.data.splits import Split
from vit.evaluation.cost import multiply_adds
from vit.models import build_model
from vit.processor import machine
from vit.tasks.classification.config import ClassificationRun
from vit.training.loop import steps
from vit.training.progress import RunCounters
from vit.training.session import Session, open_session

_PRODUCTS = 5
"""Matrix products per turn, because the first one finds the caches filled with other data."""


@dataclass(frozen=True, kw_only=True)
class PipelineSpec:
    """Numbers of workers, compared libraries and turns. ValueError for invalid ones."""

    workers: Sequence[int]
    peers: Sequence[str] = tuple(LOADERS)
    turns: int = 5

    def __post_init__(self) -> None:
        for name in self.peers:
            check(name in LOADERS, "--peers", name, nearest(name, LOADERS))
        for number in self.workers:
            check(number >= 0, "--workers", number, "it must be at least 0")
        check_positive("--turns", self.turns)


def bench_data(config: ClassificationRun, spec: PipelineSpec, progress: ProgressFn) -> dict[str, Any]:
    """Measure images/s of the loaders by number of workers. ValueError for settings that only one of them has."""
    return _bench("data", config, spec, progress, _our_batches, _their_batches)


def bench_epoch(config: ClassificationRun, spec: PipelineSpec, progress: ProgressFn) -> dict[str, Any]:
    """Measure images/s of training epochs by number of workers.

    ValueError for a ResNet and for settings that one of the loops does not have. RuntimeError if timm's model computes
    other logits than ours with the same weights.
    """
    _check_training(config)
    return _bench("epoch", config, spec, progress, _our_training, ReferenceLoop)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Work of a pass, to compare with the matrix product timed with it."""

    gflop: dict[str, float]
    """Pass over all images, for each library."""
    difference: float
    """Difference of timm's logits from ours with the same weights."""
    product: Callable[[], object]
    product_gflop: float


def _bench(
    kind: str,
    config: ClassificationRun,
    spec: PipelineSpec,
    progress: ProgressFn,
    ours: Callable[[Session, AugmentingLoader], Callable[[], None]],
    theirs: Callable[[Session, Batches], Callable[[], None]],
) -> dict[str, Any]:
    check_shared(config.data, config.augment)
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(config, Path(folder))
        device = session.accelerator.device.type
        check(device in ("cpu", "cuda"), "device", device, "cpu and cuda are timed")
        split = _whole_batches(session)
        work = _work(session, len(split), spec.peers) if kind == "epoch" else None
        rows = []
        for workers in spec.workers:
            progress(f"{workers} workers: first pass, not timed")
            loader = _our_loader(session, split, workers)
            functions, unsupported = {OURS: ours(session, loader)}, {}
            functions[OURS]()
            for name in spec.peers:
                try:
                    batches = LOADERS[name](_loader_spec(session, split, loader.loader.is_cached), workers)
                except Unsupported as reason:
                    unsupported[name] = str(reason)
                    progress(f"  without {name}: {reason}")
                    continue
                functions[name] = theirs(session, batches)
                functions[name]()
            where = {"kept": loader.loader.is_cached, "on_device": loader.loader.bytes_on_device() > 0}
            measured = _measure(functions, spec.turns, device, len(split), workers, work)
            rows.append({"workers": workers, **where, "unsupported": unsupported, **measured})
            progress(line(rows[-1]))
        return {
            "bench": kind,
            "rows": rows,
            **({} if work is None else {"difference": work.difference}),
            **_facts(session, split, spec.turns),
            "conventions": CONVENTIONS[kind],
        }


def _work(session: Session, num_images: int, peers: Sequence[str]) -> _Work:
    """Count the work of an epoch and check timm's model against ours.

    ValueError for a precision that the reference loop does not have, and for a model that timm does not have.
    RuntimeError if timm's logits differ.
    """
    precision, size = session.precision, task_of(session).preprocessing.image_size
    rule = "the reference loop has fp32 and bf16; set it to one, or ACCELERATE_MIXED_PRECISION where that is set"
    check(precision in ("fp32", "bf16"), "train.precision", precision, rule)
    _, difference = timm_model(session)
    with torch.device("meta"):
        meta_model = build_model(task_of(session).backbone.config)  # a new one, because the session's may be compiled
    gflop = {
        name: round(STEP_PASSES * 2 * multiply_adds(meta_model, size, every_token=name != OURS) * num_images / 1e9, 6)
        for name in (OURS, *peers)
    }
    product, product_gflop = matrix_product(precision, session.accelerator.device.type)
    return _Work(
        gflop=gflop,
        difference=float(f"{difference:.1e}"),
        product=lambda: [product() for _ in range(_PRODUCTS)],
        product_gflop=_PRODUCTS * product_gflop,
    )


def _measure(
    functions: dict[str, Callable[[], None]],
    turns: int,
    device: str,
    num_images: int,
    workers: int,
    work: _Work | None,
) -> dict[str, Any]:
    product = {} if work is None else {PEAK: work.product}
    times = time_interleaved({**functions, **product}, turns, device, seed=f"{workers} workers")
    names = [name for name in times if name != PEAK]
    peers = [name for name in names if name != OURS]
    measured = {
        "images_per_second": {name: quartiles([num_images / each.wall for each in times[name]], 1) for name in names},
        "ratios": {name: quartiles(speedups(times[OURS], times[name])) for name in peers},
        "processor_ratios": {
            name: quartiles(speedups(times[OURS], times[name], "processor")) for name in peers if workers == 0
        },
        "seconds": {name: [round(each.wall, 4) for each in times[name]] for name in names},
    }
    if work is None:
        return measured
    gflop = {name: work.gflop[name] for name in names}
    return {**measured, "gflop": gflop, **compare_with_peak(times, gflop, work.product_gflop)}


def _whole_batches(session: Session) -> Split:
    """Return the training images in whole batches. ValueError if there are none, or for several processes."""
    task = task_of(session)
    size, split = task.config.data.batch_size, task.train_split
    rule = f"only whole batches are timed and there are {len(split)} training images"
    check(size <= len(split), "data.batch_size", size, rule)
    if session.accelerator.num_processes > 1:
        raise ValueError("accelerate: the other loaders run in one process; leave out accelerate launch")
    return replace(split, indices=split.indices[: len(split) // size * size], epoch_length=None)


def _our_loader(session: Session, split: Split, workers: int) -> AugmentingLoader:
    task = task_of(session)
    config, size = task.config, task.preprocessing.image_size
    data, device = replace(config.data, workers=workers), session.accelerator.device
    loader = TrainLoader(split, data, config.augment, image_size=size, seed=config.seed, device=device)
    return AugmentingLoader(loader, task.train_loader.augment, seed=config.seed)


def _loader_spec(session: Session, split: Split, keep: bool) -> LoaderSpec:
    task = task_of(session)
    config, device = task.config, session.accelerator.device
    num_classes = len(task.class_names)
    return LoaderSpec(split, config.data, config.augment, task.preprocessing, num_classes, device, keep)


def _our_batches(session: Session, loader: AugmentingLoader) -> Callable[[], None]:
    epochs = itertools.count()

    def run() -> None:
        epoch = next(epochs)
        for step in loader.epoch(epoch):
            for batch in step.batches:
                session.task.prepare(batch, session.accelerator.device)

    return run


def _their_batches(session: Session, batches: Batches) -> Callable[[], None]:
    device = session.accelerator.device

    def run() -> None:
        for images, targets in batches:
            images.to(device, non_blocking=True)
            targets.to(device, non_blocking=True)

    return run


def _our_training(session: Session, loader: AugmentingLoader) -> Callable[[], None]:
    """Build a function that runs the training loop for one more epoch."""
    task_of(session).train_loader = loader
    session.progress = RunCounters()

    def run() -> None:
        for _ in steps(session):
            pass
        session.progress.epoch += 1
        session.progress.step_in_epoch = 0

    return run


def _check_training(config: ClassificationRun) -> None:
    """Refuse settings that the reference loop does not have, because only ours would do their work."""
    optim, train = config.optim, config.train
    allowed: dict[str, tuple[Any, bool, str]] = {
        "optim.name": (optim.name, optim.name == "adamw", "it; use adamw"),
        "optim.layer_decay": (optim.layer_decay, optim.layer_decay == 1, "rates a layer"),
        "train.accumulation_steps": (train.accumulation_steps, train.accumulation_steps == 1, "micro-batches"),
        "train.loss": (train.loss, train.loss == "cross_entropy", "bce"),
        "train.compile_blocks": (True, not train.compile_blocks, "blocks that are compiled alone; use train.compile"),
        "train.gradient_checkpointing": (True, not train.gradient_checkpointing, "gradient checkpointing"),
        "distill.teacher": (config.distill.teacher, config.distill.teacher is None, "a teacher"),
        "model.freeze_backbone": (True, not config.model.freeze_backbone, "frozen layers"),
    }
    for name, (value, is_allowed, what) in allowed.items():
        check(is_allowed, name, value, f"the compared reference loop does not have {what}")


def _facts(session: Session, split: Split, turns: int) -> dict[str, Any]:
    config = task_of(session).config
    return {
        "dataset": config.data.name,
        "images": len(split),
        "image_size": list(task_of(session).preprocessing.image_size),
        "batch_size": config.data.batch_size,
        "model": session.task.info.model_name,
        "precision": session.precision,
        "augment": asdict(config.augment),
        "turns": turns,
        "compile": config.train.compile,
        "cuda_graphs": config.train.cuda_graphs,
        "machine": machine(session.accelerator.device.type, ("timm", "torchvision", "pillow")),
    }
