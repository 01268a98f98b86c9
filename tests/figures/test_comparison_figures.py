"""The pictures of a comparison: every number is where it should be, and long names do no harm."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from vit.figures.agreement import plot_agreement
from vit.figures.average_precision import plot_compared_precision
from vit.figures.calibration import Curve, Panel, plot_calibration
from vit.figures.contact_sheet import CaptionedImage, plot_contact_sheet
from vit.figures.corruption_accuracy import plot_corruption_accuracy
from vit.figures.intervals import Estimate, plot_interval_panels, plot_intervals


def test_an_interval_has_its_value_and_its_ends() -> None:
    figure = plot_intervals([Estimate("a", 0.5, 0.4, 0.7), Estimate("b" * 60, 0.1, 0.0, 0.2)], "top-1")
    (axes,) = figure.axes
    interval = axes.collections[0]
    assert isinstance(interval, LineCollection)
    first = np.asarray(interval.get_segments()[0])
    assert first[:, 0].tolist() == [0.4, 0.7]
    assert np.asarray(axes.lines[0].get_xdata())[0] == 0.5
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first on top
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[0] == "a"
    assert names[1].endswith("…")


def test_what_holds_zero_is_pale() -> None:
    figure = plot_intervals([Estimate("sure", 0.1, 0.05, 0.2), Estimate("not", -0.1, -0.3, 0.2)], "points", signed=True)
    figure.draw_without_rendering()
    sure, unsure = figure.axes[0].lines[:2]
    assert sure.get_alpha() == 1
    assert (unsure.get_alpha() or 1) < 1
    assert sure.get_color() != unsure.get_color()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert "0" in labels
    assert "−20" in labels


def test_panels_beside_each_other_have_the_same_names() -> None:
    first, second = [Estimate("a", 0.1, 0.0, 0.2), Estimate("b", 0.3, 0.2, 0.4)], [Estimate("a", 0.2, 0.1, 0.3)]
    figure = plot_interval_panels({"one": first, "other": [second[0], first[1]]}, "points", signed=True)
    left, right = figure.axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["one", "other"]
    assert [float(np.asarray(axes.lines[0].get_xdata())[0]) for axes in (left, right)] == [0.1, 0.2]
    assert [label.get_text() for label in left.get_yticklabels()] == ["a", "b"]
    with pytest.raises(ValueError, match=r"panels: other: \['a'\] is not valid: the first has a, b"):
        plot_interval_panels({"one": first, "other": second}, "points")


def test_agreement_is_written_and_a_missing_number_is_not() -> None:
    values = np.array([[1.0, 0.25], [0.25, np.nan]])
    figure = plot_agreement({"same": values, "kappa": -values}, ["a", "long name"])
    texts = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert texts == [["1.00", "0.25", "0.25"], ["−1.00", "−0.25", "−0.25"]]


def test_calibration_has_a_panel_a_model() -> None:
    curve = Curve(np.array([0.2, 0.9]), np.array([0.0, 1.0]))
    for num in (1, 4, 5):
        panels = [Panel(f"model {place}", curve, curve if place else None) for place in range(num)]
        figure = plot_calibration(panels)
        drawn = [axes for axes in figure.axes if axes.get_title(loc="left")]
        assert [axes.get_title(loc="left") for axes in drawn] == [panel.name for panel in panels]
        assert [len(axes.collections) for axes in drawn] == [1] + [2] * (num - 1)
        assert len(figure.legends) == 1


def test_a_contact_sheet_has_every_picture_in_its_place() -> None:
    pixels = np.zeros((4, 6, 3), dtype=np.uint8)
    groups = {
        "only a": [CaptionedImage(pixels, f"label {place}", "b: wrong\nc: wrong") for place in range(9)],
        "only b": [],
    }
    figure = plot_contact_sheet(groups, "no image")
    figure.draw_without_rendering()
    assert [text.get_text() for text in figure.texts] == ["only a", "only b: no image"]
    boxes = [axes.get_position() for axes in figure.axes]
    assert len(boxes) == 9
    assert boxes[8].y1 < boxes[0].y0  # the ninth begins a second row
    assert boxes[8].x0 == boxes[0].x0
    heights = [text.get_position()[1] for text in figure.texts]
    assert heights[0] > boxes[0].y1
    assert heights[1] < boxes[8].y0
    assert min(box.y0 for box in boxes) > 0


def test_corruptions_begin_with_the_clean_image() -> None:
    models = {"a": {"fog": [0.8, 0.7], "snow": [0.6, 0.5]}, "b": {"fog": [0.1, 0.2], "snow": [0.3, 0.4]}}
    figure = plot_corruption_accuracy(models, {"a": 0.9, "b": 0.5})
    fog, snow = figure.axes[:2]
    assert list(np.asarray(fog.lines[0].get_ydata())) == [0.9, 0.8, 0.7]
    assert list(np.asarray(snow.lines[1].get_ydata())) == [0.5, 0.3, 0.4]
    assert fog.get_title(loc="left") == "fog"


def test_average_precisions_of_several_models_stand_side_by_side() -> None:
    models = {
        "a": [Estimate("cat", 0.5, 0.4, 0.7), Estimate("dog", 0.2, 0.1, 0.3)],
        "b": [Estimate("cat", 0.6, 0.5, 0.8), Estimate("dog", 0.1, 0.0, 0.2)],
    }
    (axes,) = plot_compared_precision(models).axes
    assert [np.asarray(line.get_xdata()).tolist() for line in axes.lines] == [[0.5, 0.2], [0.6, 0.1]]
    segments = [
        np.asarray(collection.get_segments()[0])
        for collection in axes.collections
        if isinstance(collection, LineCollection)
    ]
    assert [segment[:, 0].tolist() for segment in segments] == [[0.4, 0.7], [0.1, 0.3], [0.5, 0.8], [0.0, 0.2]]
    for line, of_model in zip(axes.lines, (segments[:2], segments[2:]), strict=True):
        assert np.asarray(line.get_ydata()).tolist() == [segment[0, 1] for segment in of_model]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first class on top
    with pytest.raises(ValueError, match=r"its classes must be the first model's: cat, dog"):
        plot_compared_precision(models | {"c": models["a"][:1]})
    with pytest.raises(ValueError, match=r"between 1 and 6 can be told apart"):
        plot_compared_precision(dict.fromkeys("abcdefg", models["a"]))


def test_a_seventh_model_has_a_line_of_its_own() -> None:
    models = {f"model {number}": {"noise": [0.5]} for number in range(7)}
    figure = plot_corruption_accuracy(models, dict.fromkeys(models, 0.9))
    looks = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()}
    assert len(looks) == 7


def test_the_legend_of_long_names_stays_inside_the_figure() -> None:
    models = {f"{number} {'a long name ' * 6}": {"noise": [0.5]} for number in range(4)}
    figure = plot_corruption_accuracy(models, dict.fromkeys(models, 0.9))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert all(text.get_text().endswith("…") for text in legend.get_texts())
