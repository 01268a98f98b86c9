"""Malformed settings, command lines and run folders: one line each, or rightly taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.malformed import command_lines, run_folders, settings
from tests.faults.malformed.trials import PARTS, Case, judge, sample, try_apart

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TABLES: dict[str, Callable[[], list[Case]]] = {
    "settings": settings.cases,
    "command lines": command_lines.cases,
    "run folders": run_folders.cases,
}


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", TABLES)
def test_every_case_is_a_line_or_rightly_taken(kind: str, part: int, tmp_path: Path) -> None:
    cases = TABLES[kind]()
    assert len(cases) >= 200
    faults = judge(kind, sample(cases, part), tmp_path)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("kind", TABLES)
def test_a_sample_in_processes_of_their_own(kind: str, tmp_path: Path) -> None:
    cases = [case for case in TABLES[kind]()[11::50] if "\0" not in "".join(case.command)]  # no process can be given it
    faults = judge(f"{kind}, processes", cases, tmp_path, try_apart)
    assert not faults, "\n".join(faults)
