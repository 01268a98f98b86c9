"""Malformed weight files and foreign folders: one line each, or rightly taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.malformed import foreign_json, weights, weights_inside
from tests.faults.malformed.trials import Case, judge, try_apart

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TABLES: dict[str, Callable[[], list[Case]]] = {
    "weight files": lambda: weights.cases() + weights_inside.cases(),
    "folders of other libraries": foreign_json.cases,
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_case_is_a_line_or_rightly_taken(kind: str, tmp_path: Path) -> None:
    cases = TABLES[kind]()
    assert len(cases) >= 200
    faults = judge(kind, cases, tmp_path)
    assert not faults, "\n".join(faults)


def test_a_sample_in_processes_of_their_own(tmp_path: Path) -> None:
    cases = [case for make in TABLES.values() for case in make()[::97]]
    faults = judge("weight files and folders, processes", cases, tmp_path, try_apart)
    assert not faults, "\n".join(faults)
