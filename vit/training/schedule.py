"""The learning rate as a pure function of the samples seen, without a state to save."""

from __future__ import annotations

import math

from vit.config import OptimConfig


def learning_rate(samples_seen: int, total_samples: int, samples_per_epoch: int, config: OptimConfig) -> float:
    """The rate of the step that begins after `samples_seen` samples of `total_samples`.

    Linear warm-up from 0 over `warmup_epochs`, then cosine or linear decay to `min_lr`, the inverse square root of the
    samples seen, or constant. The result depends
    on no batch size, so processes and accumulation do not change it.
    """
    warmup_samples = config.warmup_epochs * samples_per_epoch
    if samples_seen < warmup_samples:
        return config.lr * samples_seen / warmup_samples
    progress = (samples_seen - warmup_samples) / max(1.0, total_samples - warmup_samples)
    remaining = {
        "cosine": 0.5 * (1 + math.cos(math.pi * min(1.0, progress))),
        "linear": max(0.0, 1 - progress),
        "inverse_sqrt": math.sqrt(warmup_samples / max(samples_seen, 1.0)),
        "constant": 1.0,
    }[config.schedule]
    return config.min_lr + (config.lr - config.min_lr) * remaining
