"""What is refused before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.tiny import tiny
from vit.training.setup import prepare

RESNET = {"name": "resnet18_cifar", "width": 4, "patch_size": None, "depth": None, "num_heads": None}


def test_a_resnet_refuses_micro_batches_too_small_for_its_statistics(tmp_path: Path) -> None:
    split = prepare(tiny(model=RESNET, train={"accumulation_steps": 2}), tmp_path).task.train_loader.samples_per_epoch
    assert split % 16 == 5, "the last step's five images make micro-batches of two and three, but not four of two"
    with pytest.raises(ValueError, match=r"data\.batch_size: 16 is not valid: .* a micro-batch of 1 images"):
        prepare(tiny(model=RESNET, train={"accumulation_steps": 4}), tmp_path)
    prepare(tiny(train={"accumulation_steps": 4}), tmp_path)
