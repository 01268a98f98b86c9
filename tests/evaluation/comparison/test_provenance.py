"""What names say, and what is warned of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.training.tiny import tiny
from vit.config import Preprocessing
from vit.evaluation.comparison.provenance import RANDOM, Provenance, from_run, from_tag, warnings

PLAIN = Provenance("timm", ("ImageNet-1k",), "a1", "none said", Preprocessing(image_size=(224, 224)))


@pytest.mark.parametrize(
    ("architecture", "tag", "expected"),
    [
        ("vit_base_patch16_224", "augreg_in21k_ft_in1k", (("ImageNet-21k", "ImageNet-1k"), "augreg", "none said")),
        ("resnet50", "a1_in1k", (("ImageNet-1k",), "a1", "none said")),
        ("resnet50", "fb_swsl_ig1b_ft_in1k", (("Instagram (1 B)", "ImageNet-1k"), "fb_swsl", "none said")),
        ("deit_base_distilled_patch16_224", "fb_in1k", (("ImageNet-1k",), "fb", "from a teacher")),
        ("vit_base_patch16_clip_224", "laion2b_ft_in12k_in1k", (("LAION-2B", "ImageNet-12k", "ImageNet-1k"),)),
        ("convnext", "", ((), "not said", "none said")),
    ],
)
def test_a_tag(architecture: str, tag: str, expected: tuple) -> None:
    assert from_tag(architecture, tag)[: len(expected)] == expected


def test_a_run_says_what_it_started_from() -> None:
    config = tiny(model={"pretrained": "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", "new_head": True})
    assert from_run(config)[0] == ("ImageNet-21k", "ImageNet-1k", "fake")
    assert from_run(tiny(model={"pretrained": "runs/before"}))[0] == ("runs/before", "fake")
    data, recipe, distillation = from_run(tiny(data={"fraction": 0.25}))
    assert data == ("fake",)
    assert recipe == "adamw, lr 0.003, 2 epochs of 0.25 of the images"
    assert distillation == "none"


def test_like_for_like_has_no_warning() -> None:
    assert warnings(["a", "b"], [PLAIN, replace(PLAIN, weights="torchvision", distillation="none")]) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data": ("ImageNet-21k", "ImageNet-1k")}, "Trained on different data (a: ImageNet-1k; b: ImageNet-21k → Im"),
        ({"recipe": "augreg"}, "Different recipes (a: a1; b: augreg)"),
        ({"distillation": "from a teacher"}, "Different distillation (a: none; b: from a teacher)"),
        ({"preprocessing": Preprocessing(image_size=(288, 288))}, "Different image sizes (a: 224×224; b: 288×288)"),
        (
            {"preprocessing": Preprocessing(image_size=(224, 224), crop_fraction=0.9)},
            "Different preprocessing (a: centre 1, bicubic; b: centre 0.9, bicubic)",
        ),
    ],
)
def test_each_confounder_is_said(changed: dict, said: str) -> None:
    (line,) = warnings(["a", "b"], [PLAIN, replace(PLAIN, **changed)])
    assert line.startswith(said)


def test_of_a_model_that_learned_nothing_only_its_size_counts() -> None:
    size = Preprocessing(image_size=(288, 288), crop_fraction=0.5)
    lines = warnings(["a", "b"], [PLAIN, Provenance(RANDOM, (), "none", "none", size)])
    assert len(lines) == 2
    assert lines[0].startswith("Never trained: b.")
    assert lines[1].startswith("Different image sizes")
