"""Images a second of several models, measured in turns, so that what the machine does meanwhile hits all alike.

Inference alone: images are on the device already. Knows how long a call takes, and nothing of what it computes.
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
    """Images a second."""

    median: float
    slowest: float
    fastest: float
    turns: tuple[float, ...]
    """In the order in which they were measured."""


@dataclass(frozen=True)
class Timed:
    """A model that is on its device, and the (height, width) of the images that it is given."""

    model: nn.Module
    image_size: tuple[int, int]


def speeds_in_turns(
    models: Mapping[str, Timed],
    *,
    batch_size: int,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    turns: int = 5,
    seconds: float = 0.2,
) -> dict[str, Speed]:
    """The speed of each model at `batch_size`. A turn repeats the batch until it lasts about `seconds`.

    How often is settled by the second of two calls before the first turn. Models come back in their own modes.
    """
    images = {name: torch.rand(batch_size, 3, *timed.image_size, device=device) for name, timed in models.items()}
    rates: dict[str, list[float]] = {name: [] for name in models}
    with ExitStack() as modes, torch.inference_mode(), autocast():
        for timed in models.values():
            modes.enter_context(evaluating(timed.model))
        calls = {name: _calls_for(seconds, models[name].model, images[name], device) for name in models}
        for turn in range(turns):
            names = list(models)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                taken = _seconds(models[name].model, images[name], calls[name], device)
                rates[name].append(batch_size * calls[name] / taken)
    return {
        name: Speed(statistics.median(found), min(found), max(found), tuple(found)) for name, found in rates.items()
    }


def _calls_for(seconds: float, model: nn.Module, images: Tensor, device: torch.device) -> int:
    _seconds(model, images, 1, device)
    return max(1, math.ceil(seconds / _seconds(model, images, 1, device)))


def _seconds(model: nn.Module, images: Tensor, calls: int, device: torch.device) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        model(images)
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter() - start
