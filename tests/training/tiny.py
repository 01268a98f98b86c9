"""The smallest runs that still use everything, and how two of them are compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.config import AugmentConfig, DataConfig, ModelConfig, OptimConfig
from vit.runs import Checkpoint, last_checkpoint, read_checkpoint, read_metrics
from vit.tasks.classification.config import ClassificationRun, ClassificationTrainConfig, DistillConfig

TINY = ClassificationRun(
    model=ModelConfig(name="vit", image_size=8, patch_size=4, width=16, depth=2, num_heads=2),
    data=DataConfig(
        name="fake",
        fake_images=40,
        fake_classes=3,
        batch_size=16,
        workers=0,
        eval_batch_size=7,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    ),
    augment=AugmentConfig(),
    optim=OptimConfig(lr=3e-3, warmup_epochs=0.5),
    train=ClassificationTrainConfig(epochs=2, precision="fp32", log_every_steps=1),
    distill=DistillConfig(),
    device="cpu",
)
"""37 images to train on: three steps an epoch, the last of five images."""

RANDOM: dict[str, Any] = {
    "model": {
        "stochastic_depth_rate": 0.3,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
        "patch_dropout_rate": 0.25,
    },
    "augment": {
        "crop": "random_resized",
        "flip": True,
        "policy": "three_augment",
        "color_jitter": 0.3,
        "erasing_probability": 0.5,
        "mixup_alpha": 0.4,
        "cutmix_alpha": 1.0,
        "mix_group": 4,
    },
}
"""Everything that draws random numbers."""


def tiny(base: ClassificationRun = TINY, **sections: Any) -> ClassificationRun:
    """`tiny(optim={"name": "sgd"}, seed=3)`: the tiny run with these settings changed."""
    changed = {
        name: replace(getattr(base, name), **value) if isinstance(value, dict) else value
        for name, value in sections.items()
    }
    return replace(base, **changed)


def last(run: Path) -> Checkpoint:
    path = last_checkpoint(run)
    assert path is not None
    return read_checkpoint(path)


def assert_same_bits(run: Path, other: Path) -> None:
    """The last checkpoints hold the same weights, averages and optimizer state, and the histories the same numbers."""
    ours, theirs = last(run), last(other)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for group, tensors in ours.tensors.items():
        assert tensors.keys() == theirs.tensors[group].keys()
        different = [name for name, tensor in tensors.items() if not torch.equal(tensor, theirs.tensors[group][name])]
        assert not different, f"{group}: {different}"
    assert timeless(ours.state["progress"]) == timeless(theirs.state["progress"])
    assert ours.state["best"] == theirs.state["best"]
    assert [timeless(record) for record in read_metrics(run)] == [timeless(record) for record in read_metrics(other)]


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    """Without what the clock says."""
    return {
        key: timeless(value) if isinstance(value, dict) else value
        for key, value in record.items()
        if key != "seconds" and not key.endswith("_per_second")
    }


def defined(name: str, tensor: Tensor) -> Tensor:
    """Without the keys' bias: softmax does not see it, its gradient is rounding, and Adam makes steps of that."""
    if "qkv.bias" not in name or tensor.ndim == 0:
        return tensor
    queries, _, values = tensor.chunk(3)
    return torch.cat((queries, values))
