"""Grids inferred from the number of positions, and ambiguous numbers."""

from __future__ import annotations

import pytest

from vit.weights.grids import check_grid, infer_grid


@pytest.mark.parametrize(
    ("rows", "num_prefix", "model_grid", "expected"),
    [
        (197, 1, (14, 14), (14, 14)),
        (196, 0, (14, 14), (14, 14)),
        (198, 2, (24, 24), (14, 14)),
        (197, 1, (24, 32), (14, 14)),
        (13, 1, (3, 4), (3, 4)),
    ],
)
def test_the_only_grid_is_inferred(
    rows: int, num_prefix: int, model_grid: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert (
        infer_grid(rows, num_prefix=num_prefix, possible_prefix=num_prefix, model_grid=model_grid, name="file")
        == expected
    )


@pytest.mark.parametrize(
    ("rows", "num_prefix", "possible_prefix", "model_grid", "expected"),
    [
        (197, 1, 1, (7, 28), r"7×28 patches and 1 prefix token and 14×14 patches and 1 prefix token"),
        (196, 0, 1, (7, 28), r"7×28 patches and no prefix tokens and 14×14 patches and no prefix tokens"),
        (196, 1, 1, (13, 15), r"13×15 patches and 1 prefix token and 14×14 patches and no prefix tokens"),
    ],
)
def test_an_ambiguous_grid_is_refused(
    rows: int, num_prefix: int, possible_prefix: int, model_grid: tuple[int, int], expected: str
) -> None:
    with pytest.raises(ValueError, match=rf"positions of {rows} tokens, which fit {expected}.*pretrained_grid"):
        infer_grid(rows, num_prefix=num_prefix, possible_prefix=possible_prefix, model_grid=model_grid, name="file")


@pytest.mark.parametrize(
    ("rows", "num_prefix", "possible_prefix", "expected"),
    [
        (
            196,
            1,
            1,
            r"positions for 195 patches, neither .* nor a square; it would fit 14×14 patches and no prefix tokens",
        ),
        (197, 0, 1, r"positions for 197 patches, neither .* it would fit 14×14 patches and 1 prefix token"),
        (200, 1, 1, r"positions for 199 patches, neither the model's 24×24 nor a square; is model.name"),
        (0, 1, 1, r"positions for -1 patches"),
    ],
)
def test_no_grid_is_refused_with_what_would_fit(
    rows: int, num_prefix: int, possible_prefix: int, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        infer_grid(rows, num_prefix=num_prefix, possible_prefix=possible_prefix, model_grid=(24, 24), name="file")


def test_a_given_grid_must_have_as_many_patches() -> None:
    assert check_grid(197, 1, (7, 28), "file") == (7, 28)
    with pytest.raises(ValueError, match=r"model\.pretrained_grid: \[7, 28\] is not valid: file has positions for 197"):
        check_grid(197, 0, (7, 28), "file")
