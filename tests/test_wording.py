"""Counts with their noun."""

from __future__ import annotations

import pytest

from vit.wording import counted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("step",), ("0 steps", "1 step", "1,000 steps")),
        (("process", "processes"), ("0 processes", "1 process", "1,000 processes")),
    ],
)
def test_one_is_singular(words: tuple[str, ...], said: tuple[str, ...]) -> None:
    assert tuple(counted(count, *words) for count in (0, 1, 1000)) == said
