"""Whether this machine's memory can hold a model, before any of it is allocated."""

from __future__ import annotations

import math

import torch

from vit.config import ResNetConfig, ViTConfig
from vit.config.resnet import STAGES
from vit.processor import machine_memory

_BYTES = 4  # of a parameter, in float32


def check_fits_memory(parameters: int, described: str) -> None:
    """ValueError for a model of so many parameters (at least) that exceeds this machine's memory.

    Passes on the meta device, where models have no numbers. `described`: settings and values that make it so large.
    """
    machine = machine_memory()
    if parameters * _BYTES > machine and torch.get_default_device().type != "meta":
        needed, has = (f"{size / 2**30:,.0f} GiB" for size in (parameters * _BYTES, machine))
        raise ValueError(
            f"model: {described} makes at least {parameters:.3g} parameters, in {needed}; this machine has {has}"
        )


def least_parameters(config: ViTConfig | ResNetConfig) -> int:
    """A lower bound of a model's parameters: its largest matrices and tables."""
    if isinstance(config, ResNetConfig):
        return _of_last_stage(config)
    width = config.width
    block_parameters = 4 * width**2 + 2 * width * round(config.mlp_ratio * width)
    places = math.prod(config.grid_size) if config.positions in ("learned_1d", "learned_1d_rope") else 0
    places += sum(config.grid_size) // 2 if config.positions == "learned_2d" else 0  # each of half the width
    return (
        config.depth * block_parameters
        + (places + config.num_registers + math.prod(config.patch_size) * (config.stem == "patch")) * width
        + (config.representation_width or 0) * config.pooled_width
        + config.num_classes * config.head_width
    )


def _of_last_stage(config: ResNetConfig) -> int:
    """Convolutions of the widest stage, of which the first block reads fewer channels and counts as half, and head."""
    kind, depths = STAGES[config.depth]
    width = config.width * 2 ** (len(depths) - 1)
    block, features = 18 * width**2, width  # two 3×3 convolutions
    if kind == "bottleneck":
        inner, features = (config.group_width or config.width) * config.groups * 2 ** (len(depths) - 1), 4 * width
        block = 2 * inner * features + 9 * inner**2 // config.groups
    return (2 * depths[-1] - 1) * block // 2 + config.num_classes * features
