"""README's Python runs, its links lead somewhere, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from vit.cli import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md")))


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    code = re.sub(r'"timm:[^"]*"', '"vit_tiny_patch16_224"', code)  # random weights: no network
    query = torch.randn(1, 2, 16, 8)
    names = {"images": torch.randn(2, 3, 224, 224), "query": query, "key": query, "value": query}
    exec(code, names)
    assert names["logits"].shape == (2, 10)
    assert names["tokens"].shape == (2, 197, 768)
    assert names["output"].shape == query.shape
    assert (tmp_path / "distance.png").stat().st_size > 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_every_command_is_shown_and_exists() -> None:
    shown = set(re.findall(r"(?<![\w`])vit ([a-z]+) ", "\n".join(re.findall(r"^    .*$", README, flags=re.MULTILINE))))
    assert shown == set(COMMANDS)


def test_configurations_named_in_the_readme_exist() -> None:
    for name in re.findall(r"--config ([\w./]+)", README):
        assert (ROOT / name).is_file() or (ROOT / "configs" / f"{name}.yaml").is_file(), name
