"""Masks, each written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vit.attention import masks


def rows(mask: Tensor) -> list[str]:
    return ["".join("x" if entry else "." for entry in row) for row in mask.reshape(-1, mask.shape[-1]).tolist()]


def test_padding() -> None:
    assert rows(masks.padding(torch.tensor([2, 0, 4]), 4)) == ["xx..", "....", "xxxx"]
    assert masks.padding(torch.tensor([2, 0, 4]), 4).shape == (3, 1, 1, 4)
    by_query = masks.padding(torch.tensor([[1, 3], [2, 0]]), 3)
    assert by_query.shape == (2, 1, 2, 3)
    assert rows(by_query) == ["x..", "xxx", "xx.", "..."]
    with pytest.raises(ValueError, match="integers of shape"):
        masks.padding(torch.tensor([1.0]), 3)
    with pytest.raises(ValueError, match="integers of shape"):
        masks.padding(torch.tensor(1), 3)


def test_causal() -> None:
    assert rows(masks.causal(3)) == ["x..", "xx.", "xxx"]
    assert rows(masks.causal(2, 4)) == ["xxx.", "xxxx"]


def test_window() -> None:
    assert rows(masks.window(4, 1)) == ["xx..", "xxx.", ".xxx", "..xx"]
    assert rows(masks.window(2, 0, 3)) == [".x.", "..x"]
    with pytest.raises(ValueError, match=r"radius: 1\.5 is not valid"):
        masks.window(4, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="radius"):
        masks.window(4, -1)


def test_segments_and_their_combination() -> None:
    ids = torch.tensor([[0, 0, 1, 1]])
    assert rows(masks.segments(ids)) == ["xx..", "xx..", "..xx", "..xx"]
    assert rows(masks.segments(ids) & masks.causal(4)) == ["x...", "xx..", "..x.", "..xx"]
    assert rows(masks.segments(torch.tensor([[1]]), ids)) == ["..xx"]
    assert masks.segments(ids).shape == (1, 1, 4, 4)
    with pytest.raises(ValueError, match=r"segments: \(4,\) and \(4,\) are not valid"):
        masks.segments(ids[0])


@pytest.mark.parametrize("arguments", [("a",), (2.0,), (-1,), (3, "b"), (3, -2)])
def test_sizes_are_whole_numbers(arguments: tuple[Any, ...]) -> None:
    for build in (masks.causal, lambda n, m=None: masks.window(n, 1, m)):
        with pytest.raises(ValueError, match=r"num_(queries|keys): .* is not valid: it must be a whole number"):
            build(*arguments)
