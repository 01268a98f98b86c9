"""Speed, measured in turns: this package's training against the usual loop, on the same images, model, batch and dtype.

The usual loop is a `DataLoader` whose workers decode with PIL and augment image by image with torchvision's v2
transforms, around timm's Vision Transformer and torch's optimizer. Both sides train for a number of steps, one after
the other, several times; the ratio of a turn is taken within it, because machines are noisy.

Both sides do the same work a step. A setting that the usual loop has no counterpart of is refused. Two differ in kind,
not in cost: torchvision mixes a whole batch with one ratio, and timm starts from its own weights.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from vit.config import ClassificationRun, check
from vit.experiments.usual_loop import task_of, usual_steps
from vit.training.interruption import StopRequest
from vit.training.loop import train_step
from vit.training.setup import Session, prepare
from vit.training.state import Progress


def bench_training(config: ClassificationRun, steps: int, turns: int, workers: int) -> dict[str, Any]:
    """Images/s of both sides in every turn, and the median of the turns' ratios.

    ValueError for a ResNet and for every other setting that only one of the sides would honour.
    """
    for name, value, least in (("steps", steps, 1), ("turns", turns, 1), ("loader_workers", workers, 0)):
        check(value >= least, f"--{name}", value, f"it must be at least {least}")
    _check_settings(config)
    with tempfile.TemporaryDirectory() as folder:
        session = prepare(config, Path(folder))
        _check_session(session)
        sides = {"vit": _our_steps(session), "usual": usual_steps(session, workers)}
        for side in sides.values():  # first steps compile, allocate and fill the workers' queues
            _time(side, 3, config.data.batch_size)
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in tqdm(range(turns), desc="turns", disable=None):
            for name, side in sides.items():
                rates[name].append(_time(side, steps, config.data.batch_size))
    ratios = [ours / theirs for ours, theirs in zip(rates["vit"], rates["usual"], strict=True)]
    return {
        "device": session.accelerator.device.type,
        "precision": session.precision,
        "threads": torch.get_num_threads(),
        "batch_size": config.data.batch_size,
        "compile": config.train.compile,
        "images_per_second": {name: [round(rate, 1) for rate in values] for name, values in rates.items()},
        "median": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "ratios": [round(ratio, 3) for ratio in ratios],
        "median_ratio": round(statistics.median(ratios), 3),
        "conventions": "images/s over a whole step: load, augment, forward, backward, clip, optimizer, average",
    }


def _check_settings(config: ClassificationRun) -> None:
    """What the usual loop does not do would be work of one side only."""
    augment, optim, train = config.augment, config.optim, config.train
    crops = augment.crop == "random_resized"
    allowed: dict[str, tuple[Any, bool, str]] = {
        "augment.policy": (augment.policy, augment.policy != "three_augment", "three_augment"),
        "augment.magnitude": (
            augment.magnitude,
            augment.magnitude == round(augment.magnitude),
            "a part of a magnitude",
        ),
        "augment.magnitude_std": (augment.magnitude_std, augment.magnitude_std == 0, "a spread of magnitudes"),
        "augment.repeats": (augment.repeats, augment.repeats == 1, "repeated augmentation"),
        "data.antialias": (config.data.antialias, config.data.antialias, "resizing without antialiasing"),
        "data.crop_fraction": (config.data.crop_fraction, crops or config.data.crop_fraction == 1, "a centre crop"),
        "optim.name": (optim.name, optim.name in ("adamw", "muon"), "it; use adamw or muon"),
        "optim.layer_decay": (optim.layer_decay, optim.layer_decay == 1, "rates a layer"),
        "train.accumulation_steps": (train.accumulation_steps, train.accumulation_steps == 1, "micro-batches"),
        "train.loss": (train.loss, train.loss == "cross_entropy", "bce"),
        "train.gradient_checkpointing": (True, not train.gradient_checkpointing, "gradient checkpointing"),
        "distill.teacher": (config.distill.teacher, config.distill.teacher is None, "a teacher"),
        "model.freeze_backbone": (True, not config.model.freeze_backbone, "frozen layers"),
    }
    for name, (value, is_allowed, what) in allowed.items():
        check(is_allowed, name, value, f"the usual loop it is compared with does not have {what}")


def _check_session(session: Session) -> None:
    task = task_of(session)
    batch_size, num_images = task.config.data.batch_size, len(task.train_split)
    rule = f"only whole batches are timed and there are {num_images} training images"
    check(batch_size <= num_images, "data.batch_size", batch_size, rule)
    check(session.precision != "fp16", "train.precision", "fp16", "the usual loop scales no loss; use bf16 or fp32")
    if session.accelerator.num_processes > 1:
        raise ValueError("accelerate: the usual loop runs in one process; leave out accelerate launch")


def _time(side: Iterator[None], steps: int, batch_size: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        next(side)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return steps * batch_size / (time.perf_counter() - started)


def _our_steps(session: Session) -> Iterator[None]:
    """Whole steps of the training loop, full batches only, epoch after epoch."""
    progress, stop = Progress(), StopRequest()
    session.model.train()
    for epoch in itertools.count():
        progress.epoch = epoch
        for step in session.task.train_loader.epoch(epoch):
            if step.num_samples < task_of(session).config.data.batch_size:
                continue
            train_step(session, progress, step, stop)
            progress.step += 1
            if session.average is not None:
                session.average.update(session.bare_model, progress.step)
            yield
