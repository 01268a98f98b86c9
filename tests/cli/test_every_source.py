"""Every command that takes a model takes every kind of source: exit code 0, or one clear line and exit code 2."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.cli.every_source import COMMANDS, SOURCES, make_sources, run_cell
from vit.hub import open_model

pytestmark = pytest.mark.filterwarnings("ignore:::torch|copyreg", "ignore::DeprecationWarning")
REFUSED = {
    ("hf folder, headless", "compare"): "it has no head; `vit compare --transfer` evaluates its features",
    ("hf folder, headless", "eval"): "it has no head; `vit eval --transfer` evaluates its features",
    ("hf folder, headless", "predict"): "it has no head; `vit eval --transfer` evaluates its features",
    ("hf folder, headless", "export"): "it has no head; `vit convert` writes its weights for other libraries",
    ("hf folder, a ViT of theirs", "export"): "it has no head; `vit convert` writes its weights for other libraries",
    ("hf folder, a ViT of theirs", "compare"): "it has no head; `vit compare --transfer` evaluates its features",
    ("hf folder, a ViT of theirs", "eval"): "it has no head; `vit eval --transfer` evaluates its features",
    ("hf folder, a ViT of theirs", "predict"): "it has no head; `vit eval --transfer` evaluates its features",
    ("timm folder, a ViT of theirs", "convert"): "is not supported: it has factorized positions",
    ("hf folder, a ViT of theirs", "convert"): "is_native: True is not valid: only False is supported",
    ("timm:NAME, theirs", "convert"): "'test_byobnet' is not supported: it has the class ByobNet",
    ("multi-label run", "compare"): "it is no training run; compare runs of that task only, or all models' features",
    ("multi-label run", "eval"): "--data: 'fake' is not valid: it is no folder",
    ("multi-label run, own images", "eval --transfer"): "frozen features are evaluated on images with one class each",
    (
        "multi-label run, own images",
        "compare --transfer",
    ): "is a run of task 'multilabel'; name images of one class each",
    ("function", "convert"): "is no image classifier of this package",
}
CELLS = list(product(SOURCES, COMMANDS))
FAST = {(kind, list(COMMANDS)[place % len(COMMANDS)]) for place, kind in enumerate(SOURCES)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return make_sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize(
    ("kind", "command"), [pytest.param(*cell, marks=() if cell in FAST else pytest.mark.slow) for cell in CELLS]
)
def test_a_command_with_a_source(kind: str, command: str, sources: dict[str, list[str]], tmp_path: Path) -> None:
    code, said = run_cell(kind, command, sources[kind], tmp_path)
    refusal = REFUSED.get((kind, command))
    assert code == (2 if refusal else 0), said
    if refusal:
        (line,) = [line for line in said.splitlines() if line.startswith("vit: ")]
        assert refusal in line
        assert said.strip().splitlines()[-1] == line


@pytest.mark.parametrize(
    ("kind", "library"),
    [
        ("timm folder", "vit"),
        ("timm folder, a ViT of theirs", "timm"),
        ("hf folder", "vit"),
        ("hf folder, a ViT of theirs", "transformers"),
    ],
)
def test_which_code_computes_a_folder(kind: str, library: str, sources: dict[str, list[str]]) -> None:
    assert open_model(sources[kind][0]).implementation == library
