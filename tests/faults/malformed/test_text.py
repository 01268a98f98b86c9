"""Malformed text: one line each, or rightly taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.malformed import text
from tests.faults.malformed.trials import PARTS, Case, judge, sample, try_apart

TABLES: dict[str, Callable[[], list[Case]]] = {"text": text.cases}
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.tasks.translation.report.draw_run", lambda *_: None)


@pytest.mark.parametrize("part", PARTS)
def test_every_case_is_a_line_or_rightly_taken(part: int, tmp_path: Path) -> None:
    cases = TABLES["text"]()
    assert len(cases) >= 200
    faults = judge("text", sample(cases, part), tmp_path)
    assert not faults, "\n".join(faults)


def test_a_sample_in_processes_of_their_own(tmp_path: Path) -> None:
    faults = judge("text, processes", text.cases()[::43], tmp_path, try_apart)
    assert not faults, "\n".join(faults)
