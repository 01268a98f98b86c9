"""Dots where the heads are, at any depth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from vit.figures.heads_by_depth import HeadValues, plot_heads_by_depth, plot_sorted_heads
from vit.figures.style import save_figure


@pytest.mark.parametrize(("depth", "heads"), [(1, 1), (6, 3), (12, 12), (32, 16)])
def test_every_head_is_a_dot_above_its_block(depth: int, heads: int, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((depth, heads))
    ends = np.stack((values * 0.9, values * 1.1))
    panel = HeadValues(values=values, label="pixels", interval=ends, reference=1.5, reference_label="uniform")
    figure = plot_heads_by_depth([panel])
    (axes,) = figure.axes
    bars, dots = axes.collections
    assert isinstance(bars, LineCollection)
    places = np.asarray(dots.get_offsets())
    assert np.round(places[:, 0]).tolist() == np.repeat(np.arange(1, depth + 1), heads).tolist()
    np.testing.assert_allclose(places[:, 1], values.ravel())
    np.testing.assert_allclose(np.asarray(axes.get_lines()[0].get_ydata()), values.mean(axis=1))
    assert axes.get_ylim() == (0, pytest.approx(1.62))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a head", "mean of the block", "uniform"]
    save_figure(figure, tmp_path / "figure.png", {"conventions": "none"})


def test_panels_stand_side_by_side_and_titles_name_them() -> None:
    panels = [HeadValues(values=np.ones((2, 3)), label="nats"), HeadValues(values=np.zeros((2, 3)), label="weight")]
    first, second = plot_heads_by_depth(panels, ("entropy", "mass")).axes
    assert (first.get_title(loc="left"), second.get_ylabel()) == ("entropy", "weight")


def test_sorted_heads_of_two_models_share_a_scale() -> None:
    first = HeadValues(values=[[1, 2, 3], [4, 5, 6]], label="pixels", interval=np.ones((2, 2, 3)))
    second = HeadValues(values=[[7, 8]], label="pixels")
    left, right, _ = plot_sorted_heads([first, second], ("a", "b")).axes
    assert [np.asarray(line.get_ydata()).tolist() for line in left.get_lines()] == [[1, 2, 3], [4, 5, 6]]
    assert [np.asarray(line.get_ydata()).tolist() for line in right.get_lines()] == [[7, 8]]
    assert (len(left.collections), len(right.collections)) == (2, 0)
    assert left.get_ylim() == right.get_ylim() == (0, pytest.approx(8.64))
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["a", "b"]
    with pytest.raises(ValueError, match="not sorted"):
        plot_sorted_heads([HeadValues(values=[[2, 1]], label="pixels")])


def test_an_interval_ends_where_values_do() -> None:
    wide = HeadValues(values=[[0.5, 0.9]], label="weight", interval=[[[-0.2, 0.7]], [[0.6, 1.3]]], largest=1.0)
    for draw in (plot_heads_by_depth, plot_sorted_heads):
        bars = draw([wide]).axes[0].collections[0]
        assert isinstance(bars, LineCollection)
        ends = [np.asarray(segment)[:, 1].tolist() for segment in bars.get_segments()]
        assert ends == [[0.0, 0.6], [0.7, 1.0]]
