"""Every code block of the documents runs, and every command is one that its program takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import PAGES, Block, read_blocks, read_commands, read_session
from tests.docs.commands import check_parses
from vit.cli import main
from vit.settings import resolve_run

QUICK = ("api.md", "how_to_add.md")
LANGUAGES = {"sh", "console", "python", "yaml", "text", "html"}
RUN_BY_CI = ("pip", "pytest", "mkdocs")
"""Programs that `.ci/run` runs."""
ONE_EPOCH = ["--train.epochs", "1", "--data.workers", "0"]
SMALL = {
    "train": ONE_EPOCH,
    "compare --train": ["--fractions", "0.1", "1", "--seeds", "1", *ONE_EPOCH],
    "compare --finetune": ["--epochs", "1", "--data.workers", "0", "--data.batch_size", "24"],
    "compare": ["--data.workers", "0"],
    "eval": ["--data.workers", "0"],
    "analyze": ["--images", "8"],
    "profile": ["--steps", "2", "--data.workers", "0"],
    "doctor": ["--images", "8"],
}
"""Command → options that are put behind its own and make it quick."""
NO_NETWORK = {
    r"(timm|torchvision|hf):[\w./-]*(vit|dino)[\w./-]*": "vit_tiny_patch16_224",
    r"(timm|torchvision):resnet[\w.]*": "resnet18",
}
"""What would be downloaded → an architecture, which has random weights."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_taken_by_its_program(
    page: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a configuration hold an invalid setting."""
    monkeypatch.chdir(images)
    blocks = read_blocks(page)
    assert {block.language for block in blocks} <= LANGUAGES
    for block in (block for block in blocks if block.language == "yaml"):
        (tmp_path / "settings.yaml").write_text(block.text)
        resolve_run(tmp_path / "settings.yaml")
    for block in (block for block in blocks if block.language == "sh"):
        for words in read_commands(block.text):
            try:
                check_parses(words)
            except (AssertionError, ValueError, SystemExit, pytest.fail.Exception) as error:
                pytest.fail(f"{block.place}: {' '.join(words)}: {error}")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[] if page.name in QUICK else [pytest.mark.slow])
        for page in PAGES
        if any(block.not_run is None and block.language in ("sh", "python", "console") for block in read_blocks(page))
    ],
)
@pytest.mark.filterwarnings("ignore:You are using the default seed")
@pytest.mark.filterwarnings("ignore:The ``noload`` loader:DeprecationWarning")  # MLflow, of SQLAlchemy 2.1
def test_the_blocks_of_a_page_run(
    page: Path, workplace: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, in one folder and one namespace."""
    if "runs/" in page.read_text():
        shutil.copytree(request.getfixturevalue("runs"), workplace / "runs")
    names: dict[str, Any] = {}
    for block in read_blocks(page):
        text = block.text
        for pattern, ours in NO_NETWORK.items():
            text = re.sub(pattern, ours, text)
        if block.language == "python" and not block.not_run:
            exec(compile(text, block.place, "exec"), names)
        elif block.language == "sh" and not block.not_run:
            for words in read_commands(text):
                run(words, block.place, capsys)
        elif block.language == "console":
            check_session(block, capsys)


def run(words: Sequence[str], place: str, capsys: pytest.CaptureFixture[str]) -> None:
    if words[0] in RUN_BY_CI or words == ["python", "train.py"]:
        return
    if words[0] == "python" and words[1] in ("train.py", "eval.py"):
        words = ["vit", words[1].removesuffix(".py"), *words[2:]]
    if words[0] != "vit":
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{place}: {' '.join(words)}: {done.stderr}"
        return
    kinds = [f"compare {option}" for option in ("--train", "--finetune") if option in words]
    given = list(words[1:])
    if given[:2] == ["train", "--config"] and "--output_dir" not in given:
        shutil.rmtree(Path("runs") / given[2], ignore_errors=True)  # a run that was there before the page made it
    small = SMALL.get(kinds[0] if kinds else given[0], []) if "--resume" not in given else []
    code = main([*_without(given, small), *small])
    assert code == 0, f"{place}: {' '.join(words)}: {capsys.readouterr().err}"


def _without(words: list[str], options: Sequence[str]) -> list[str]:
    """The words without options, by either of their names, that are given others."""
    again = {option for option in options if option.startswith("--")}
    again |= {f"--{option.rpartition('.')[2]}" for option in again}
    kept = list(words)
    for option in again & set(kept):
        place = kept.index(option)
        following = (number for number in range(place + 1, len(kept)) if kept[number].startswith("--"))
        del kept[place : next(following, len(kept))]
    return kept


def check_session(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """What the commands of a session print; `…` stands for anything."""
    for words, printed in read_session(block.text):
        capsys.readouterr()
        main(words[1:])
        said = capsys.readouterr()
        pattern = ".*".join(map(re.escape, printed.strip().split("…")))
        assert re.search(pattern, f"{said.out}\n{said.err}", re.DOTALL), f"{block.place}:\n{said.out}\n{said.err}"
