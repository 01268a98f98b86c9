"""docs/transcript.md shows what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from docs.transcript import PAGE, STEPS, write_images
from vit.cli import main

PARTS = re.findall(r"```sh\n(.*?)\n```\n\n```text\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def labels(text: str) -> list[str]:
    """The words before two or more blanks: rows of a table of facts, as on every machine."""
    return [line.partition("  ")[0] for line in text.splitlines()]


def test_it_has_every_step() -> None:
    assert [command for command, _ in PARTS] == [command for _, command in STEPS]


def test_the_plan_has_the_rows_that_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first step and the cheapest; the others print through the same code."""
    write_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    command, shown = PARTS[0]
    assert main(shlex.split(command)[1:]) == 0
    assert labels(capsys.readouterr().out.strip()) == labels(shown)
