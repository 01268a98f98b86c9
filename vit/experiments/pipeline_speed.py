"""From image files to training steps: this package against the loaders of others, on the same images, in turns.

`bench_data` ends at the augmented batch on the device, `bench_epoch` at the trained weights: ours is the real training
loop, the others' is the usual loop around timm's model. A turn is one pass of each side over the same images, from the
start of the pass to its last batch; nothing is decoded ahead in another side's turn. A setting that only one side would
honour is refused.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vit.config import ClassificationRun, check, check_positive, nearest
from vit.data.augmented import AugmentedLoader
from vit.data.loading import TrainLoader
from vit.data.splits import Split
from vit.evaluation.cost import multiply_adds
from vit.experiments.absent import Absent
from vit.experiments.peer_loaders import LOADERS, Batches, Wanted, check_shared
from vit.experiments.pipeline_table import CONVENTIONS, OURS, line
from vit.experiments.turns import (
    PEAK,
    STEP_PASSES,
    Seconds,
    against_peak,
    machine,
    matrix_product,
    spread,
    time_in_turns,
    times_as_fast,
)
from vit.experiments.usual_loop import UsualLoop, task_of, timm_model
from vit.models import build_model
from vit.training.interruption import StopRequest
from vit.training.loop import train_step
from vit.training.setup import Session, prepare, set_training_mode
from vit.training.state import Progress

_PRODUCTS = 5
"""Matrix products of a turn: the first finds the caches full of other things."""
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared, and how often. ValueError for what there is not."""

    workers: Sequence[int]
    peers: Sequence[str] = tuple(LOADERS)
    turns: int = 5

    def __post_init__(self) -> None:
        for name in self.peers:
            check(name in LOADERS, "--peers", name, nearest(name, LOADERS))
        for number in self.workers:
            check(number >= 0, "--workers", number, "it must be at least 0")
        check_positive("--turns", self.turns)


def bench_data(config: ClassificationRun, comparison: Comparison, tell: Tell) -> dict[str, Any]:
    """Images/s of the loaders, by number of workers. ValueError for a setting that only one of them would honour."""
    return _bench("data", config, comparison, tell, _our_batches, _their_batches)


def bench_epoch(config: ClassificationRun, comparison: Comparison, tell: Tell) -> dict[str, Any]:
    """Images/s of training epochs. ValueError for a ResNet and for every setting that one of the loops lacks.
    RuntimeError where timm's model answers otherwise than ours with the same weights.
    """
    _check_training(config)
    return _bench("epoch", config, comparison, tell, _our_training, UsualLoop)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What a pass computes, to be held against the matrix product that is timed beside it."""

    gflop: dict[str, float]
    """Of every side's pass over all images."""
    difference: float
    """Of the answers of timm's model from ours with the same weights."""
    product: Callable[[], object]
    product_gflop: float


def _bench(
    kind: str,
    config: ClassificationRun,
    comparison: Comparison,
    tell: Tell,
    ours: Callable[[Session, AugmentedLoader], Callable[[], None]],
    theirs: Callable[[Session, Batches], Callable[[], None]],
) -> dict[str, Any]:
    check_shared(config.data, config.augment)
    with tempfile.TemporaryDirectory() as folder:
        session = prepare(config, Path(folder))
        device = session.accelerator.device.type
        check(device in ("cpu", "cuda"), "device", device, "cpu and cuda are timed")
        split = _whole_batches(session)
        work = _work(session, len(split), comparison.peers) if kind == "epoch" else None
        rows = []
        for workers in comparison.workers:
            tell(f"{workers} workers: the first pass, which is not timed")
            loader = _our_loader(session, split, workers)
            sides, absent = {OURS: ours(session, loader)}, {}
            sides[OURS]()
            for name in comparison.peers:
                try:
                    batches = LOADERS[name](_wanted(session, split, loader.loader.is_kept), workers)
                except Absent as reason:
                    absent[name] = str(reason)
                    tell(f"  without {name}: {reason}")
                    continue
                sides[name] = theirs(session, batches)
                sides[name]()
            where = {"kept": loader.loader.is_kept, "on_device": loader.loader.bytes_on_device() > 0}
            measured = _measure(sides, comparison.turns, device, len(split), workers, work)
            rows.append({"workers": workers, **where, "absent": absent, **measured})
            tell(line(rows[-1]))
        return {
            "bench": kind,
            "rows": rows,
            **({} if work is None else {"difference": work.difference}),
            **_facts(session, split, comparison.turns),
            "conventions": CONVENTIONS[kind],
        }


def _work(session: Session, num_images: int, peers: Sequence[str]) -> _Work:
    """ValueError for a precision without a counterpart in the usual loop, and for a model without one in timm.
    RuntimeError where timm's answers otherwise.
    """
    precision, size = session.precision, task_of(session).preprocessing.image_size
    rule = "the usual loop has fp32 and bf16; set it to one, or ACCELERATE_MIXED_PRECISION where that is set"
    check(precision in ("fp32", "bf16"), "train.precision", precision, rule)
    _, difference = timm_model(session)
    with torch.device("meta"):
        twin = build_model(task_of(session).model.config)  # not the one that is timed: it may be compiled
    gflop = {
        name: round(STEP_PASSES * 2 * multiply_adds(twin, size, every_token=name != OURS) * num_images / 1e9, 6)
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
    sides: dict[str, Callable[[], None]],
    turns: int,
    device: str,
    num_images: int,
    workers: int,
    work: _Work | None,
) -> dict[str, Any]:
    product = {} if work is None else {PEAK: work.product}
    times = time_in_turns({**sides, **product}, turns, device, draw=f"{workers} workers")
    rates = _rates({name: found for name, found in times.items() if name != PEAK}, num_images, workers)
    if work is None:
        return rates
    gflop = {name: work.gflop[name] for name in sides}
    return {**rates, "gflop": gflop, **against_peak(times, gflop, work.product_gflop)}


def _whole_batches(session: Session) -> Split:
    """The training images, without a last part of a batch. ValueError where nothing is left, or processes share it."""
    task = task_of(session)
    size, split = task.config.data.batch_size, task.train_split
    rule = f"only whole batches are timed and there are {len(split)} training images"
    check(size <= len(split), "data.batch_size", size, rule)
    if session.accelerator.num_processes > 1:
        raise ValueError("accelerate: the other side runs in one process; leave out accelerate launch")
    return replace(split, indices=split.indices[: len(split) // size * size], epoch_length=None)


def _our_loader(session: Session, split: Split, workers: int) -> AugmentedLoader:
    task = task_of(session)
    config, size = task.config, task.preprocessing.image_size
    data, device = replace(config.data, workers=workers), session.accelerator.device
    loader = TrainLoader(split, data, config.augment, image_size=size, seed=config.seed, device=device)
    return AugmentedLoader(loader, task.train_loader.augment, seed=config.seed)


def _wanted(session: Session, split: Split, keep: bool) -> Wanted:
    task = task_of(session)
    config, device = task.config, session.accelerator.device
    num_classes = len(task.class_names)
    return Wanted(split, config.data, config.augment, task.preprocessing, num_classes, device, keep)


def _our_batches(session: Session, loader: AugmentedLoader) -> Callable[[], None]:
    epochs = itertools.count()

    def run() -> None:
        epoch = next(epochs)
        for step in loader.epoch(epoch):
            for batch in step.batches:
                batch.to(session.accelerator.device)

    return run


def _their_batches(session: Session, batches: Batches) -> Callable[[], None]:
    device = session.accelerator.device

    def run() -> None:
        for images, targets in batches:
            images.to(device, non_blocking=True)
            targets.to(device, non_blocking=True)

    return run


def _our_training(session: Session, loader: AugmentedLoader) -> Callable[[], None]:
    """The steps of the training loop, epoch after epoch."""
    progress, stop = Progress(), StopRequest()

    def run() -> None:
        set_training_mode(session.model)
        for step in loader.epoch(progress.epoch):
            train_step(session, progress, step, stop)
            progress.step += 1
            if session.average is not None:
                session.average.update(session.bare_model, progress.step)
        progress.epoch += 1

    return run


def _check_training(config: ClassificationRun) -> None:
    """What the usual loop does not do would be work of one side only."""
    optim, train = config.optim, config.train
    allowed: dict[str, tuple[Any, bool, str]] = {
        "optim.name": (optim.name, optim.name == "adamw", "it; use adamw"),
        "optim.layer_decay": (optim.layer_decay, optim.layer_decay == 1, "rates a layer"),
        "train.accumulation_steps": (train.accumulation_steps, train.accumulation_steps == 1, "micro-batches"),
        "train.loss": (train.loss, train.loss == "cross_entropy", "bce"),
        "train.gradient_checkpointing": (True, not train.gradient_checkpointing, "gradient checkpointing"),
        "distill.teacher": (config.distill.teacher, config.distill.teacher is None, "a teacher"),
        "model.freeze_backbone": (True, not config.model.freeze_backbone, "frozen layers"),
    }
    for name, (value, is_allowed, what) in allowed.items():
        check(is_allowed, name, value, f"the usual loop it is compared with does not have {what}")


def _rates(times: dict[str, list[Seconds]], num_images: int, workers: int) -> dict[str, Any]:
    peers = [name for name in times if name != OURS]
    return {
        "images_per_second": {
            name: spread([num_images / each.wall for each in seconds], 1) for name, seconds in times.items()
        },
        "ratios": {name: spread(times_as_fast(times[OURS], times[name])) for name in peers},
        "processor_ratios": {
            name: spread(times_as_fast(times[OURS], times[name], "processor")) for name in peers if workers == 0
        },
        "seconds": {name: [round(each.wall, 4) for each in found] for name, found in times.items()},
    }


def _facts(session: Session, split: Split, turns: int) -> dict[str, Any]:
    config = task_of(session).config
    return {
        "dataset": config.data.name,
        "images": len(split),
        "image_size": list(task_of(session).preprocessing.image_size),
        "batch_size": config.data.batch_size,
        "model": session.task.model_name,
        "precision": session.precision,
        "augment": asdict(config.augment),
        "turns": turns,
        "compile": config.train.compile,
        "cuda_graphs": config.train.cuda_graphs,
        "machine": machine(session.accelerator.device.type, ("timm", "torchvision", "pillow")),
    }
