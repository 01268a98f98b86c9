"""The figures of attention: what they show, and that they can be saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vit.figures.attention_map import plot_attention_map
from vit.figures.score_scaling import plot_score_scaling
from vit.figures.style import save_figure

WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]])


def labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_map_has_a_row_for_each_query_and_its_numbers(tmp_path: Path) -> None:
    figure = plot_attention_map(WEIGHTS, ["I", "$have{"], ["a", "good", "dream"])
    axes = figure.axes[0]
    assert labels(axes.xaxis) == ["a", "good", "dream"]
    assert labels(axes.yaxis) == ["I", "$have{"]
    np.testing.assert_array_equal(axes.images[0].get_array(), WEIGHTS)
    assert texts(axes) == ["1.00", ".25", ".75"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
    save_figure(figure, tmp_path / "map.png", {"weights": WEIGHTS, "conventions": "rows: queries"})
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_maps_beside_each_other_share_one_scale() -> None:
    figure = plot_attention_map([WEIGHTS, WEIGHTS / 2], ["q1", "q2"], ["1", "2", "3"], ["one", "two"])
    first, second = figure.axes[:2]
    assert [axes.get_title("left") for axes in (first, second)] == ["one", "two"]
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0, 1)
    assert texts(second) == [".50", ".12", ".38"]


def test_a_large_map_has_no_numbers() -> None:
    names = [str(place) for place in range(13)]
    assert texts(plot_attention_map(np.eye(13), names, names).axes[0]) == []


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"weights: \(1, 2, 3\) is not valid: .* \(1, 3, 2\): titles, queries, keys"):
        plot_attention_map(WEIGHTS, ["a", "b", "c"], ["a", "b"])


def test_a_score_has_one_colour_in_all_panels(tmp_path: Path) -> None:
    variances, gradients = {"dot": [4.0, 16.0], "scaled": [1.0, 1.0]}, {"scaled": [0.2, 0.2], "dot": [0.3, 0.01]}
    learned = {"additive": [0.1, 0.7], "dot": [0.2, 0.1]}
    figure = plot_score_scaling([4, 16], variances, gradients, learned, chance=1 / 16)
    panels = [{line.get_label(): line for line in axes.lines} for axes in figure.axes]
    assert list(panels[2]) == ["additive", "dot", "chance"]
    assert len({panel["dot"].get_color() for panel in panels}) == 1
    assert len({panels[0]["dot"].get_color(), panels[0]["scaled"].get_color(), panels[2]["additive"].get_color()}) == 3
    assert np.asarray(panels[1]["dot"].get_xydata()).tolist() == [[4, 0.3], [16, 0.01]]
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "log", "linear"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["dot", "scaled", "additive", "chance"]
    save_figure(figure, tmp_path / "scaling.png", {"variances": variances, "conventions": "x: width"})
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_more_scores_than_colours_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 3 scores"):
        plot_score_scaling([4], {name: [1.0] for name in "abcd"}, {}, {}, chance=0.1)
