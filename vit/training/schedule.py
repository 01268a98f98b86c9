"""The learning rate as a pure function of the images seen: no state to save, nothing a wrapper can step twice."""

from __future__ import annotations

import math

from vit.config import OptimConfig


def learning_rate(images_seen: int, total_images: int, images_per_epoch: int, config: OptimConfig) -> float:
    """The rate of the step that begins after `images_seen` images of `total_images`.

    Linear warm-up from 0 over `warmup_epochs`, then cosine or linear decay to `min_lr`, or constant. The result depends
    on no batch size, so processes and accumulation do not change it.
    """
    warmup_images = config.warmup_epochs * images_per_epoch
    if images_seen < warmup_images:
        return config.lr * images_seen / warmup_images
    progress = (images_seen - warmup_images) / max(1.0, total_images - warmup_images)
    remaining = {
        "cosine": 0.5 * (1 + math.cos(math.pi * min(1.0, progress))),
        "linear": max(0.0, 1 - progress),
        "constant": 1.0,
    }[config.schedule]
    return config.min_lr + (config.lr - config.min_lr) * remaining
