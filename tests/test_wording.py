"""Counts with their noun, numbers with their unit, and docstrings that name their subject first."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import vit
from vit.wording import counted, in_giga, markdown_table


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("step",), ("0 steps", "1 step", "1,000 steps")),
        (("process", "processes"), ("0 processes", "1 process", "1,000 processes")),
    ],
)
def test_one_is_singular(words: tuple[str, ...], said: tuple[str, ...]) -> None:
    assert tuple(counted(count, *words) for count in (0, 1, 1000)) == said


@pytest.mark.parametrize(
    ("number", "text"), [(1.817e8, "0.1817 G"), (3.3e6, "0.0033 G"), (149_000, "149.0 k"), (37_900, "37.9 k")]
)
def test_no_number_is_shown_as_zeros(number: float, text: str) -> None:
    assert in_giga(number) == text


def test_a_bar_within_a_cell_does_not_end_it() -> None:
    lines = markdown_table(("class", "images"), [("cat | dog", "3")], "---:").splitlines()
    assert lines == ["| class | images |", "| ---: | ---: |", "| cat \\| dog | 3 |"]


@pytest.mark.parametrize("folder", ["vit", "benchmarks", "results"])
def test_docstrings_open_with_a_noun_or_a_verb(folder: str) -> None:
    root = Path(vit.__file__).parents[1] / folder
    vague = [
        f"{file.relative_to(root)}:{node.lineno}: {text.splitlines()[0]}"
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)  # a constant's or a field's as well
        and isinstance(text := node.value.value, str)
        and text.startswith(("What ", "Of "))
    ]
    assert not vague
