"""Provenance read from names, and the warnings about it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from torch import nn

from tests.training.tiny import tiny
from vit.comparison.confounders import comparison_warnings, provenance_warnings
from vit.config import DataConfig, Preprocessing, RunConfig
from vit.hub import OpenedModel, provenance_of_run
from vit.libraries import NEVER_TRAINED, NOT_STATED, Provenance
from vit.libraries.timm import provenance_of_tag
from vit.libraries.transformers import PROVENANCE

PLAIN = Provenance("timm", ("ImageNet-1k",), "a1", "not stated")
SIZE = Preprocessing(image_size=(224, 224))


def model(name: str, provenance: Provenance = PLAIN, preprocessing: Preprocessing = SIZE) -> OpenedModel:
    return OpenedModel(
        name=name,
        source=name,
        model=nn.Identity(),
        provenance=provenance,
        stated_preprocessing=preprocessing,
        class_names=[],
        num_classes=1000,
    )


@pytest.mark.parametrize(
    ("architecture", "tag", "expected"),
    [
        ("vit_base_patch16_224", "augreg_in21k_ft_in1k", (("ImageNet-21k", "ImageNet-1k"), "augreg", "not stated")),
        ("resnet50", "a1_in1k", (("ImageNet-1k",), "a1", "not stated")),
        ("resnet50", "fb_swsl_ig1b_ft_in1k", (("Instagram (1 B)", "ImageNet-1k"), "fb_swsl", "not stated")),
        ("deit_base_distilled_patch16_224", "fb_in1k", (("ImageNet-1k",), "fb", "from a teacher")),
        ("vit_base_patch16_clip_224", "laion2b_ft_in12k_in1k", (("LAION-2B", "ImageNet-12k", "ImageNet-1k"),)),
        ("convnext", "", (("not stated",), "not stated", "not stated")),
    ],
)
def test_a_tag(architecture: str, tag: str, expected: tuple[Any, ...]) -> None:
    found = provenance_of_tag(architecture, tag)
    assert (found.data, found.recipe, found.distillation)[: len(expected)] == expected


def test_a_run_says_what_it_started_from() -> None:
    config = tiny(model={"pretrained": "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", "new_head": True})
    assert of_run(config).data == ("ImageNet-21k", "ImageNet-1k", "fake")
    assert of_run(tiny(model={"pretrained": "runs/before"})).data == ("not stated (before)", "fake")
    own = (of_run(replace(tiny(), data=DataConfig(name="imagefolder", root=root))).data for root in ("cats", "dogs"))
    assert list(own) == [("imagefolder cats",), ("imagefolder dogs",)]
    found = of_run(tiny(data={"fraction": 0.25}))
    assert found.data == ("fake",)
    assert found.recipe == "adamw, lr 0.003"
    assert found.epochs == "2 epochs of 0.25 of the images"
    assert found.distillation == "none"
    assert (found.started_from, found.augmentation, found.images_seen) == ("random weights", "none", "1,234")
    mixed = of_run(tiny(augment={"flip": True, "crop": "random_resized", "scale": (0.5, 1.0)}))
    assert mixed.augmentation == "crop random_resized, scale (0.5, 1.0), flip"
    assert found.weights == "run, step 7"


def of_run(config: RunConfig) -> Provenance:
    return provenance_of_run({"config": asdict(config), "progress": {"step": 7, "samples_seen": 1234}})


def test_like_for_like_has_no_warning() -> None:
    assert (
        provenance_warnings([model("a"), model("b", replace(PLAIN, weights="torchvision", distillation="none"))]) == []
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data": ("ImageNet-21k", "ImageNet-1k")}, "Trained on different data (a: ImageNet-1k; b: ImageNet-21k → Im"),
        ({"epochs": "3 epochs"}, "Trained for different numbers of epochs (a: 2 epochs; b: 3 epochs)"),
        ({"augmentation": "flip"}, "Different augmentation (a: none; b: flip)"),
        ({"precision": "bf16"}, "Different precision of training (a: fp32; b: bf16)"),
        ({"epochs": NOT_STATED, "recipe": NOT_STATED}, "Not stated, so perhaps different: recipe of b; epochs of b."),
        ({"recipe": "augreg"}, "Different recipes (a: a1; b: augreg)"),
        ({"distillation": "from a teacher"}, "Different distillation (a: none; b: from a teacher)"),
        ({"preprocessing": Preprocessing(image_size=(288, 288))}, "Different image sizes (a: 224×224; b: 288×288)"),
        (
            {"preprocessing": Preprocessing(image_size=(224, 224), crop_fraction=0.9)},
            "Different preprocessing (a: centre 1, bicubic; b: centre 0.9, bicubic)",
        ),
    ],
)
def test_each_confounder_is_said(changed: dict[str, Any], said: str) -> None:
    preprocessing = changed.pop("preprocessing", SIZE)
    stated = replace(PLAIN, epochs="2 epochs", augmentation="none", precision="fp32")
    (line,) = provenance_warnings([model("a", stated), model("b", replace(stated, **changed), preprocessing)])
    assert line.startswith(said)


def test_a_copy_of_the_data_in_another_folder_is_the_same_data(tmp_path: Path) -> None:
    """Also where its files have other names; other images under the same names are other data."""
    for place, shade, stem in (("a", 10, "x"), ("copy", 10, "x"), ("renamed", 10, "y"), ("others", 99, "x")):
        for number, name in enumerate(("cat", "dog")):
            folder, test = (tmp_path / place / part / name for part in ("train", "test"))
            folder.mkdir(parents=True)
            test.mkdir(parents=True)
            Image.new("RGB", (8, 8), (0, 0, number)).save(test / "0.png")
            for image in range(10):
                Image.new("RGB", (8, 8), (shade, number, image)).save(folder / f"{stem}{image}.png")

    def warnings(other: str) -> list[str]:
        return provenance_warnings([run_on(tmp_path / "a"), run_on(tmp_path / other)])

    assert warnings("copy") == []
    assert warnings("renamed") == []
    (line,) = warnings("others")
    assert line.startswith("Trained on different data")
    gone = [run_on(tmp_path / place) for place in ("a", "gone", "gone too")]
    assert provenance_warnings(gone) == [], "names and labels were the same, and that is all there is to know"
    other = replace(gone[2], state={**(gone[2].state or {}), "data_fingerprint": "other"})
    assert len(provenance_warnings([*gone[:2], other])) == 1


def test_images_with_other_labels_are_other_data(tmp_path: Path) -> None:
    for place, shift in (("a", 0), ("swapped", 5)):
        for number, name in enumerate(("cat", "dog")):
            folder, test = (tmp_path / place / part / name for part in ("train", "test"))
            folder.mkdir(parents=True)
            test.mkdir(parents=True)
            Image.new("RGB", (8, 8), (0, 0, number)).save(test / "0.png")
            for image in range(10):
                Image.new("RGB", (8, 8), (0, 0, (10 * number + image + shift) % 20)).save(folder / f"{image}.png")
    (line,) = provenance_warnings([run_on(tmp_path / place) for place in ("a", "swapped")])
    assert line.startswith("Trained on different data")


def run_on(root: Path) -> OpenedModel:
    config = replace(tiny(), data=DataConfig(name="imagefolder", root=str(root)))
    state = {"config": asdict(config), "progress": {"step": 7, "samples_seen": 1234}, "data_fingerprint": "same"}
    return replace(model(root.name, provenance_of_run(state)), state=state)


def test_a_folder_of_transformers_states_no_recipe() -> None:
    (line,) = provenance_warnings([model("a"), model("b", PROVENANCE)])
    assert line == "Not stated, so perhaps different: training data of b; recipe of b."


@pytest.mark.parametrize(
    ("changed", "warned"),
    [
        ({}, True),
        ({"num_classes": 10}, True),
        ({"num_classes": 10, "provenance": NEVER_TRAINED}, False),
        ({"num_classes": 10, "checkpoint": Path("run")}, False),
    ],
)
def test_a_temperature_on_images_that_a_model_may_have_been_trained_on(changed: dict[str, Any], warned: bool) -> None:
    """Only of a run are the training images known, whatever the number of its classes."""
    compared: Any = [SimpleNamespace(validation="predictions")]
    lines = comparison_warnings([replace(model("a"), **changed)], compared, "imagefolder", 0)
    assert any(line.startswith("The temperature is fitted on images of train/, and a may") for line in lines) is warned


def test_costs_that_are_far_from_equal_are_said() -> None:
    """3·8·8 = 192 weights for an output; a half more is called equal, anything above is not."""
    size = Preprocessing(image_size=(8, 8))

    def linear(name: str, outputs: int) -> OpenedModel:
        module = nn.Sequential(nn.Flatten(), nn.Linear(192, outputs, bias=False))
        return replace(model(name, preprocessing=size), model=module)

    assert provenance_warnings([linear("a", 10_000), linear("b", 15_000)]) == []
    costs, parameters = provenance_warnings([linear("a", 10_000), linear("b", 15_100)])
    assert costs.startswith("Different multiply-adds per image (a: 1.92 M; b: 2.9 M). ")
    assert parameters.startswith("Different parameters (a: 1.92 M; b: 2.9 M). ")


def test_of_a_model_that_learned_nothing_only_its_size_counts() -> None:
    size = Preprocessing(image_size=(288, 288), crop_fraction=0.5)
    lines = provenance_warnings([model("a"), model("b", NEVER_TRAINED, size)])
    assert len(lines) == 2
    assert lines[0].startswith("Never trained: b.")
    assert lines[1].startswith("Different image sizes")
