"""README's Python runs without a network, its length is bounded, its commands exist, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import PAGES, ROOT, read_blocks
from vit.cli import COMMANDS

README = ROOT / "README.md"


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in read_blocks(README) if block.language == "python")
    names: dict[str, Any] = {}
    exec(re.sub(r'"timm:[^"]*"', '"vit_tiny_patch16_224"', block.text), names)  # random weights: no network
    assert names["logits"].shape == (2, 10)
    assert names["tokens"].shape == (2, 197, 768)
    assert names["output"].shape == names["query"].shape
    assert (tmp_path / "distance.png").stat().st_size > 1000
    assert len([line for line in block.text.splitlines() if line]) <= 12


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 160


def test_the_first_commands_stand_in_the_readme() -> None:
    commands = 'pip install -e . && python train.py\npip install -e ".[test]" && pytest\n'
    assert read_blocks(README)[0].text == commands


def test_every_command_is_shown_and_exists() -> None:
    (table,) = (block.text for block in read_blocks(README) if block.language == "text")
    assert set(re.findall(r"\bvit ([a-z]+)", table)) == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
