"""The speed comparison: both sides run, their numbers agree with each other, and unequal work is refused."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.training.tiny import tiny
from vit.evaluation.cost import count_parameters
from vit.experiments import bench, usual_loop
from vit.training.setup import Session, prepare

AUGMENTED = {
    "crop": "random_resized",
    "flip": True,
    "policy": "randaugment",
    "color_jitter": 0.3,
    "erasing_probability": 0.5,
    "mixup_alpha": 0.4,
    "cutmix_alpha": 1.0,
    "mix_group": 4,
}


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"augment": AUGMENTED, "train": {"ema_decay": 0.9, "label_smoothing": 0.1}},
        {"augment": {"crop": "pad", "policy": "autoaugment_cifar10"}, "optim": {"name": "muon"}},
    ],
    ids=["plain", "augmented", "muon"],
)
def test_both_sides_are_timed_in_every_turn(sections: dict[str, Any]) -> None:
    result = bench.bench_training(tiny(**sections), steps=1, turns=2, workers=0)
    rates = result["images_per_second"]
    assert set(rates) == {"vit", "usual"}
    assert all(len(values) == 2 and min(values) > 0 for values in rates.values())
    expected = [ours / theirs for ours, theirs in zip(rates["vit"], rates["usual"], strict=True)]
    assert result["ratios"] == pytest.approx(expected, rel=0.01)
    assert result["median_ratio"] == pytest.approx(statistics.median(result["ratios"]), abs=1e-3)
    assert result["batch_size"] == 16
    assert (result["device"], result["precision"]) == ("cpu", "fp32")


def test_images_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 14.0])
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    assert bench._time(iter([None] * 3), 3, 8) == 6.0


REFUSED: dict[str, dict[str, Any]] = {
    "model.name": {"model": {"name": "resnet18", **dict.fromkeys(("patch_size", "width", "depth", "num_heads"))}},
    "augment.policy": {"augment": {"policy": "three_augment"}},
    "augment.magnitude": {"augment": {"policy": "randaugment", "magnitude": 4.5}},
    "augment.magnitude_std": {"augment": {"policy": "randaugment", "magnitude_std": 0.5}},
    "augment.repeats": {"augment": {"repeats": 2}},
    "data.crop_fraction": {"data": {"crop_fraction": 0.9}},
    "data.antialias": {"data": {"antialias": False}},
    "data.batch_size": {"data": {"batch_size": 64}},
    "train.accumulation_steps": {"train": {"accumulation_steps": 2}},
    "train.loss": {"train": {"loss": "bce"}},
    "train.gradient_checkpointing": {"train": {"gradient_checkpointing": True}},
    "optim.name": {"optim": {"name": "lamb"}},
    "optim.layer_decay": {"optim": {"layer_decay": 0.9}},
    "distill.teacher": {"distill": {"teacher": "runs/a"}},
    "model.freeze_backbone": {"model": {"freeze_backbone": True, "pretrained": "runs/a"}},
    "model.positions": {"model": {"positions": "rope"}},
    "model.feedforward": {"model": {"feedforward": "swiglu"}},
    "model.dropout_rate": {"model": {"dropout_rate": 0.1}},
    "model.attention_dropout_rate": {"model": {"attention_dropout_rate": 0.1}},
    "model.patch_dropout_rate": {"model": {"patch_dropout_rate": 0.1}},
    "model.distillation_token": {"model": {"distillation_token": True}},
}


@pytest.mark.parametrize(("field", "sections"), REFUSED.items(), ids=list(REFUSED))
def test_what_only_one_side_would_do_is_refused(field: str, sections: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(field)}: ") as caught:
        bench.bench_training(tiny(**sections), steps=1, turns=1, workers=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("turns", 0), ("workers", -1)])
def test_counts_that_time_nothing_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"^--(loader_)?{name}: {value} is not valid"):
        bench.bench_training(tiny(), **({"steps": 1, "turns": 1, "workers": 0} | {name: value}))


@pytest.mark.parametrize(
    "model",
    [
        {"num_registers": 3, "layer_scale": 0.1},
        {"pooling": "gap", "class_token": False, "qkv_bias": False},
        {"pooling": "map", "final_norm": "tokens", "qk_norm": True},
        {"pre_norm": True, "final_norm": "pooled", "pooling": "gap"},
    ],
)
def test_timms_model_has_the_configured_parts(model: dict[str, Any], tmp_path: Path) -> None:
    session = prepare(tiny(model=model), tmp_path)
    theirs = usual_loop.timm_model(session)
    registers = 16 * model.get("num_registers", 0)  # timm gives a register a position too
    assert count_parameters(theirs) - count_parameters(session.bare_model) == registers
    assert theirs(torch.zeros(2, 3, 8, 8)).shape == (2, 3)


def test_a_missing_part_does_not_slip_through() -> None:
    with pytest.raises(ValueError, match="has 20 parameters, not 30"):
        usual_loop.check_same_size(nn.Linear(5, 5), nn.Linear(3, 5))


def test_an_image_is_what_the_model_takes(tmp_path: Path) -> None:
    """Augmentation off: PIL's side sees the pixels that evaluation sees."""
    session = prepare(tiny(), tmp_path)
    images, labels = next(iter(usual_loop.usual_loader(session, 0)))
    assert images.shape == (16, 3, 8, 8)
    assert labels.shape == (16,)
    split = session.task.train_split
    ours = {int(index): _evaluated(session, int(index)) for index in split.indices}
    for image, label in zip(images, labels, strict=True):
        assert any(
            torch.allclose(image, pixels, atol=0.02) and int(label) == int(split.source.labels[index])
            for index, pixels in ours.items()
        )


def _evaluated(session: Session, index: int) -> Tensor:
    from vit.data.preprocessing import normalize, resize_and_crop

    pixels = resize_and_crop(session.task.train_split.source.read(index), session.task.preprocessing)
    return normalize(pixels[None], session.task.preprocessing)[0]
