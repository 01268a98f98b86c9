"""Mistakes with known effects on a simple model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.special import expit
from sklearn.metrics import average_precision_score
from torch import nn

from vit.config import DataConfig, Preprocessing
from vit.data.images import Split
from vit.data.preprocessing import normalize
from vit.evaluation import doctor
from vit.evaluation.doctor import (
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Diagnosis,
    DoctorImages,
    Symptom,
    diagnose_preprocessing,
    measure_mistakes,
    mistakes_for,
    open_images,
)
from vit.evaluation.head_columns import UnmatchedClasses
from vit.hub import open_model

RIGHT = Preprocessing(image_size=(16, 16), crop_fraction=0.9, mean=IMAGENET_MEAN, std=IMAGENET_STD)
CPU = torch.device("cpu")


class Brightness(nn.Module):
    """Logits: the mean of each channel after normalisation, then that of the green one again."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[1:] == (3, 16, 16)
        return images.mean(dim=(2, 3))[:, [0, 1, 2, 1]] * self.factor


class Plain:
    """Images of one colour each, with labels."""

    class_names = ("red", "green", "blue")
    colours = ((200, 20, 30), (40, 180, 10), (0, 50, 220), (90, 10, 30))
    labels = torch.tensor([0, 1, 2, 1])  # the last one is not what it says

    def __len__(self) -> int:
        return 4

    def read(self, index: int, *, smallest: object = None) -> Image.Image:  # noqa: ARG002
        return Image.new("RGB", (32, 20), self.colours[index])

    def name(self, index: int) -> str:
        return str(index)


def plain_symptoms() -> tuple[float | None, dict[str, Symptom]]:
    split = Split(Plain(), torch.arange(4))  # type: ignore[arg-type]
    images = DoctorImages(split, DataConfig(workers=0, eval_batch_size=3), is_labelled=True)
    _, top1, symptoms = measure_mistakes(Brightness(), RIGHT, images, device=CPU, columns=[0, 1, 2])
    assert [s.logit_change for s in symptoms] == sorted((s.logit_change for s in symptoms), reverse=True)
    return top1, {symptom.mistake: symptom for symptom in symptoms}


def logits(mean: tuple[float, ...], std: tuple[float, ...], scale: float = 255.0) -> np.ndarray:
    values = (np.array(Plain.colours) / scale - np.array(mean)) / np.array(std)
    return values[:, [0, 1, 2, 1]]


def test_costs_of_plain_images_by_hand() -> None:
    top1, found = plain_symptoms()
    right = logits(IMAGENET_MEAN, IMAGENET_STD)
    assert top1 == 0.75
    for name, wrong in (
        ("mean and std 0.5", logits(HALF, HALF)),
        ("mean and std left out", logits((0, 0, 0), (1, 1, 1))),
        ("pixels of 0 to 255, not divided", logits(IMAGENET_MEAN, IMAGENET_STD, scale=1)),
    ):
        symptom = found[name]
        assert symptom.logit_change == pytest.approx(np.abs(wrong - right).mean(), rel=1e-4)
        assert symptom.relative_change == pytest.approx(symptom.logit_change / right.std(ddof=1), rel=1e-4)
        assert symptom.agreement == (wrong.argmax(axis=1) == right.argmax(axis=1)).mean()
        assert symptom.top1 == (wrong[:, :3].argmax(axis=1) == Plain.labels.numpy()).mean()
    backwards = (np.array(Plain.colours)[:, ::-1] / 255 - IMAGENET_MEAN) / np.array(IMAGENET_STD)
    change = np.abs(backwards[:, [0, 1, 2, 1]] - right).mean()
    assert found["blue, green, red"].logit_change == pytest.approx(change, rel=1e-4)
    assert found["blue, green, red"].top1 == 0.25


def test_a_model_whose_logits_are_no_numbers_is_refused() -> None:
    broken = Brightness()
    torch.nn.init.constant_(broken.factor, torch.nan)
    images = DoctorImages(Split(Plain(), torch.arange(4)), DataConfig(workers=0), is_labelled=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4 of 4 samples have logits that are not finite"):
        measure_mistakes(broken, RIGHT, images, device=CPU, columns=[0, 1, 2])


def test_a_multilabel_model_s_symptoms_are_scikit_learn_s() -> None:
    """Label sets at thresholds of each class, and average precision of the classes that an image has."""

    class Several(Plain):
        class_names = ("green", "red", "violet")
        labels = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], dtype=torch.uint8)

    split = Split(Several(), torch.arange(4))  # type: ignore[arg-type]
    images = DoctorImages(split, DataConfig(workers=0, eval_batch_size=3), is_labelled=True)
    thresholds, columns = [0.3, 0.6, 0.5, 0.4], [1, 0, 2]
    num_images, score, symptoms = measure_mistakes(
        Brightness(), RIGHT, images, device=CPU, columns=columns, thresholds=thresholds
    )
    assert num_images == 4
    found = {symptom.mistake: symptom for symptom in symptoms}

    def expected_map(values: np.ndarray) -> float:
        pairs = ((Several.labels[:, place], expit(values[:, columns[place]])) for place in (0, 1))
        return float(np.mean([average_precision_score(*pair) for pair in pairs]))

    right = logits(IMAGENET_MEAN, IMAGENET_STD)
    assert score == pytest.approx(expected_map(right))
    backwards = (np.array(Plain.colours)[:, ::-1] / 255 - IMAGENET_MEAN) / np.array(IMAGENET_STD)
    maps = set()
    for name, wrong in (
        ("mean and std 0.5", logits(HALF, HALF)),
        ("mean and std left out", logits((0, 0, 0), (1, 1, 1))),
        ("blue, green, red", backwards[:, [0, 1, 2, 1]]),
    ):
        same = (expit(wrong) >= thresholds) == (expit(right) >= thresholds)
        assert found[name].agreement == same.all(axis=1).mean()
        assert found[name].map == pytest.approx(expected_map(wrong))
        assert found[name].top1 is None
        maps.add(found[name].map)
    assert len(maps) > 1
    assert any(0 < found[name].agreement < 1 for name in ("mean and std 0.5", "blue, green, red"))


def test_geometry_changes_nothing_in_plain_images() -> None:
    _, found = plain_symptoms()
    for name in ("bilinear filter", "nearest filter", "no antialiasing", "squashed to a square", "no centre crop"):
        assert found[name].logit_change < 1e-6
        assert found[name].agreement == 1
        assert found[name].top1 == 0.75
    assert found["half the size, enlarged"].logit_change < 1e-5


def test_only_what_differs_from_right_is_a_mistake() -> None:
    names = {mistake.name for mistake in mistakes_for(RIGHT)}
    assert "ImageNet's mean and std" not in names
    assert "mean and std 0.5" in names
    assert "bicubic filter" not in names
    assert {"bilinear filter", "no antialiasing", "no centre crop", "cropped to 87.5%"} <= names
    other = Preprocessing(image_size=(8, 8), interpolation="bilinear", antialias=False, squash=True)
    names = {mistake.name for mistake in mistakes_for(other)}
    assert {"ImageNet's mean and std", "bicubic filter", "antialiasing", "aspect kept"} <= names
    assert not {"mean and std 0.5", "no centre crop", "bilinear filter"} & names


def test_a_mistake_of_numbers_is_what_its_name_says() -> None:
    """The disguise as another mean and std gives the numbers that the mistake would give."""
    mistakes = {mistake.name: mistake for mistake in mistakes_for(RIGHT)}
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_STD))
    wrong = mistakes["pixels of 0 to 255, not divided"]
    torch.testing.assert_close(normalize(images, wrong.preprocessing), (images.float() - mean) / std)
    wrong = mistakes["blue, green, red"]
    found = wrong.change(normalize(images, wrong.preprocessing))
    torch.testing.assert_close(found, (images.flip(1).float() / 255 - mean) / std)


def test_a_model_of_random_weights_on_images_without_labels(tmp_path: Path) -> None:
    for name in ("b.png", "a.jpg"):
        Image.effect_noise((200, 180), 90).convert("RGB").save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    opened = open_model("timm:test_vit.r160_in1k", random_weights=True)
    found = diagnose_preprocessing(opened, open_images([str(tmp_path)], 5), device="cpu")
    assert found.num_images == 2
    assert found.top1 is None
    assert found.note == "the images have no labels"
    assert all(symptom.top1 is None for symptom in found.symptoms)
    assert {"no antialiasing", "cropped to 87.5%"} <= {symptom.mistake for symptom in found.symptoms}
    assert "the images have no labels" in found.table()
    assert found.facts()["conventions"]["agreement"]


def test_a_broken_photograph_is_counted(tmp_path: Path) -> None:
    Image.effect_noise((60, 50), 90).convert("RGB").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    opened = open_model("timm:test_vit.r160_in1k", random_weights=True)
    found = diagnose_preprocessing(opened, open_images([str(tmp_path)]), device="cpu")
    assert found.num_images == 1
    assert found.note == "the images have no labels\n1 image could not be read"


def test_labels_of_a_data_set_are_used() -> None:
    opened = open_model("timm:test_vit.r160_in1k", random_weights=True, num_classes=3)
    data = DataConfig(name="fake", fake_images=40, fake_classes=3, workers=0)
    found = diagnose_preprocessing(opened, open_images(data, 6), device="cpu")
    assert found.num_images == 6
    assert found.top1 is not None
    assert found.note == ""


def test_the_table_shows_each_cost() -> None:
    top1, symptoms = plain_symptoms()
    table = Diagnosis("m", RIGHT, 4, top1, list(symptoms.values())).table()
    line = next(line for line in table.splitlines() if line.startswith("blue, green, red"))
    assert line.split()[3:5] == ["25.0%", "-50.0"]
    assert all(len(line) < 130 for line in table.splitlines()[2:])


def test_images_must_be_there(tmp_path: Path) -> None:
    for places, said in (((), "--data: required: "), ((str(tmp_path),), "the folder holds no images")):
        with pytest.raises(ValueError, match=said):
            open_images(places)


def test_classes_that_do_not_match_are_a_note_and_a_defect_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[int]:
        raise UnmatchedClasses("its classes are others")

    def fail(*_: object) -> list[int]:
        raise ValueError("a defect")

    opened = open_model("timm:test_vit.r160_in1k", random_weights=True)
    images = open_images(DataConfig(name="fake", fake_images=40, fake_classes=3, workers=0), 3)
    monkeypatch.setattr(doctor, "head_columns", refuse)
    assert diagnose_preprocessing(opened, images, device="cpu").note == "no accuracy: its classes are others"
    monkeypatch.setattr(doctor, "head_columns", fail)
    with pytest.raises(ValueError, match="a defect"):
        diagnose_preprocessing(opened, images, device="cpu")
