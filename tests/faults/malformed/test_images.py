"""Malformed images and image folders: one line each, or rightly taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.malformed import image_lists, image_places
from tests.faults.malformed.trials import PARTS, Case, judge, sample, try_apart

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TABLES: dict[str, Callable[[], list[Case]]] = {
    "images, predicted": image_places.cases_of_predict,
    "images and folders, trained on": image_places.cases_of_training,
    "lists of images": image_lists.cases,
}


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", TABLES)
def test_every_case_is_a_line_or_rightly_taken(kind: str, part: int, tmp_path: Path) -> None:
    faults = judge(kind, sample(TABLES[kind](), part), tmp_path)
    assert not faults, "\n".join(faults)


def test_there_are_enough() -> None:
    assert len(image_places.cases_of_predict()) >= 180
    assert sum(len(make()) for make in TABLES.values()) >= 200


def test_a_sample_in_processes_of_their_own(tmp_path: Path) -> None:
    cases = image_places.cases_of_predict()[::23]
    faults = judge("images, processes", cases, tmp_path, try_apart)
    assert not faults, "\n".join(faults)
