"""Inference speed of several models, timed alternately, so that other load on the machine affects all alike.

Images are on the device before the timing starts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.evaluation.evaluate import evaluating

CONVENTIONS = {
    "images_per_second": "inference on random images that are on the device; each turn times every model once, the "
    "order moving on by one; median of the turns",
    "spread": "slowest and fastest turn",
}


@dataclass(frozen=True)
class Speed:
    """Images per second."""

    median: float
    slowest: float
    fastest: float
    turns: tuple[float, ...]
    """In the order of measurement."""


@dataclass(frozen=True)
class TimedModel:
    """A model on its device, and the (height, width) of its images."""

    model: nn.Module
    image_size: tuple[int, int]


def interleaved_speeds(
    models: Mapping[str, TimedModel],
    *,
    batch_size: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    turns: int = 5,
    seconds: float = 0.2,
) -> dict[str, Speed]:
    """Measure the speed of each model at `batch_size`. A turn repeats the batch for about `seconds`.

    The second of two calls before the first turn sets the number of repetitions. Models keep their modes.
    """
    images = {name: torch.rand(batch_size, 3, *timed.image_size, device=device) for name, timed in models.items()}
    rates: dict[str, list[float]] = {name: [] for name in models}
    with ExitStack() as modes, torch.inference_mode():
        for timed in models.values():
            modes.enter_context(evaluating(timed.model))
        calls = {}
        for name, timed in models.items():
            _seconds(timed.model, images[name], 1, device, autocast)  # warm-up
            calls[name] = max(1, math.ceil(seconds / _seconds(timed.model, images[name], 1, device, autocast)))
        for turn in range(turns):
            names = list(models)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                taken = _seconds(models[name].model, images[name], calls[name], device, autocast)
                rates[name].append(batch_size * calls[name] / taken)
    return {
        name: Speed(statistics.median(found), min(found), max(found), tuple(found)) for name, found in rates.items()
    }


def _seconds(
    model: nn.Module,
    images: Tensor,
    calls: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]],
) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        with autocast():  # anew for each batch, as in an evaluation: it casts the weights once in its context
            model(images)
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - start
