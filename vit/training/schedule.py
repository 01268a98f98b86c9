"""The learning rate as a pure function of the samples seen, without a state to save."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from vit.config import OptimConfig


def warmup_samples(samples_per_epoch: int, steps_per_epoch: int, epochs: int, config: OptimConfig) -> float:
    """The samples after which the rate is `optim.lr`: `warmup_epochs`, but no later than where the last step begins.

    A warm-up shorter than a step is none, for its one step would have the rate 0.
    """
    step = samples_per_epoch / steps_per_epoch
    warmup = min(config.warmup_epochs * samples_per_epoch, epochs * samples_per_epoch - step)
    falls_from_its_end = config.schedule == "inverse_sqrt"
    return warmup if warmup >= step or falls_from_its_end else 0.0


def learning_rate(samples_seen: int, total_samples: int, warmup: float, config: OptimConfig) -> float:
    """The rate of the step that begins after `samples_seen` samples of `total_samples`.

    Linear warm-up from 0 over `warmup` samples, then cosine or linear decay to `min_lr`, the inverse square root of the
    samples seen, or constant. It does not depend on the batch size, so neither processes nor accumulation change it.
    """
    if samples_seen < warmup:
        return config.lr * samples_seen / warmup
    progress = (samples_seen - warmup) / max(1.0, total_samples - warmup)
    remaining = {
        "cosine": 0.5 * (1 + math.cos(math.pi * min(1.0, progress))),
        "linear": max(0.0, 1 - progress),
        "inverse_sqrt": math.sqrt((warmup or 1.0) / max(samples_seen, 1.0)),
        "constant": 1.0,
    }[config.schedule]
    return config.min_lr + (config.lr - config.min_lr) * remaining


def rate_curve(
    total_samples: int, warmup: float, config: OptimConfig, num_points: int = 600
) -> tuple[list[int], list[float]]:
    """Samples seen, and the rate of the step that begins there, at even distances and at the end of the warm-up."""
    even = {round(total_samples * place / (num_points - 1)) for place in range(num_points)}
    peak = math.ceil(warmup)
    seen = sorted(even | {min(peak, total_samples)})
    return seen, [learning_rate(each, total_samples, warmup, config) for each in seen]


def has_followed(
    history: Sequence[Mapping[str, Any]], seen_key: str, total_samples: int, warmup: float, config: OptimConfig
) -> bool:
    """Whether the rates on record are this schedule's: not those of a run that began with another number of epochs.

    A record holds the rate of a step that began after the samples of the record before and ended at its own.
    """
    logged = [(record[seen_key], record["lr"]) for record in history if "lr" in record]
    peak, slack = math.ceil(warmup), 1e-6 * config.lr
    for (before, _), (after, rate) in pairwise([(0, 0.0), *logged]):
        # a schedule rises and then falls, so it is lowest at an end
        places = {before, after, min(max(peak, before), after)}
        rates = [learning_rate(place, total_samples, warmup, config) for place in places]
        if not min(rates) - slack <= rate <= max(rates) + slack:
            return False
    return True
