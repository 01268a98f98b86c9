"""What stored answers depend on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.evaluation.comparison.test_libraries import contestant
from vit.config import DataConfig, Preprocessing
from vit.data.folders import FolderSource
from vit.data.images import Split
from vit.engine import make_accelerator
from vit.evaluation.comparison.answers import Question, identity_of, last_change


@pytest.fixture
def question(tmp_path: Path) -> Question:
    for place, name in enumerate("abc"):
        (tmp_path / f"{name}.png").touch()
        os.utime(tmp_path / f"{name}.png", (1000 + place, 1000 + place))
    source = FolderSource(tmp_path, ["a.png", "b.png", "c.png"], torch.tensor([0, 1, 0]), ["x", "y"])
    split = Split(source, torch.tensor([0, 1]))
    return Question("test", split, split, DataConfig(), tmp_path, make_accelerator("cpu", "fp32"))


def test_a_changed_image_makes_its_answers_old(question: Question, tmp_path: Path) -> None:
    assert last_change(question.split) == 1001, "the newest of those that are asked about"
    before = identity_of(contestant(2), question)
    os.utime(tmp_path / "a.png", (2000, 2000))
    assert identity_of(contestant(2), question) != before


def test_everything_that_changes_an_answer_is_in_its_identity(question: Question) -> None:
    model = contestant(2)
    before = identity_of(model, question)
    other = Preprocessing(image_size=(8, 8), interpolation="bilinear")
    for changed in (
        replace(model, source="timm:b"),
        replace(model, identity="1" * 12),
        replace(model, provenance=replace(model.provenance, preprocessing=other)),
    ):
        assert identity_of(changed, question) != before
    fewer = replace(question, split=Split(question.split.source, torch.tensor([0])))
    assert identity_of(model, fewer) != before
    assert (before["device"], before["precision"]) == ("cpu", "no")
