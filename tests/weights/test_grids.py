"""Grids of positions told by their number, and numbers that fit two."""

from __future__ import annotations

import pytest

from vit.weights.grids import check_grid, read_grid


@pytest.mark.parametrize(
    ("rows", "placed", "wanted", "expected"),
    [
        (197, 1, (14, 14), (14, 14)),
        (196, 0, (14, 14), (14, 14)),
        (198, 2, (24, 24), (14, 14)),
        (197, 1, (24, 32), (14, 14)),
        (13, 1, (3, 4), (3, 4)),
    ],
)
def test_one_reading_is_taken(rows: int, placed: int, wanted: tuple[int, int], expected: tuple[int, int]) -> None:
    assert read_grid(rows, placed=placed, tokens=placed, wanted=wanted, name="file") == expected


@pytest.mark.parametrize(
    ("rows", "placed", "tokens", "wanted", "expected"),
    [
        (197, 1, 1, (7, 28), r"7×28 patches and 1 of prefix tokens and 14×14 patches and 1 of prefix tokens"),
        (196, 0, 1, (7, 28), r"7×28 patches and none of a prefix and 14×14 patches and none"),
        (196, 1, 1, (13, 15), r"13×15 patches and 1 of prefix tokens and 14×14 patches and none of a prefix"),
    ],
)
def test_two_readings_are_refused(rows: int, placed: int, tokens: int, wanted: tuple[int, int], expected: str) -> None:
    with pytest.raises(ValueError, match=rf"positions of {rows} tokens, which fit {expected}.*pretrained_grid"):
        read_grid(rows, placed=placed, tokens=tokens, wanted=wanted, name="file")


@pytest.mark.parametrize(
    ("rows", "placed", "tokens", "expected"),
    [
        (
            196,
            1,
            1,
            r"positions for 195 patches, neither .* nor a square; it would fit 14×14 patches and none of",
        ),
        (197, 0, 1, r"positions for 197 patches, neither .* it would fit 14×14 patches and 1 of prefix tokens"),
        (200, 1, 1, r"positions for 199 patches, neither the model's 24×24 nor a square; is model.name"),
        (0, 1, 1, r"positions for -1 patches"),
    ],
)
def test_no_reading_is_refused_with_what_would_fit(rows: int, placed: int, tokens: int, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        read_grid(rows, placed=placed, tokens=tokens, wanted=(24, 24), name="file")


def test_a_grid_that_is_said_must_have_as_many_patches() -> None:
    assert check_grid(197, 1, (7, 28), "file") == (7, 28)
    with pytest.raises(ValueError, match=r"model\.pretrained_grid: \[7, 28\] is not valid: file has positions for 197"):
        check_grid(197, 0, (7, 28), "file")
