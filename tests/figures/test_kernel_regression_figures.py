"""The figures of kernel regression and of layers' costs: what they show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.layer_cost_figure import layer_cost
from tests.figures.legends import legend_texts
from vit.figures.kernel_regression import (
    ERRORS,
    plot_errors,
    plot_estimates,
    plot_kernels,
    plot_weight_maps,
    plot_wiggles,
)
from vit.figures.style import save_figure

X = np.array([0.0, 1.0, 2.0])


def test_estimates_stand_below_each_other_beside_curve_and_points(tmp_path: Path) -> None:
    panels = {"epoch 0": X + 1, "epoch 7": X + 2}
    figure = plot_estimates(X, X**2, panels, [0.5, 1.5], [3.0, 4.0])
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(panels)
    for axes, estimate in zip(figure.axes, panels.values(), strict=True):
        points, curve, line = axes.lines
        np.testing.assert_array_equal(np.asarray(points.get_xydata()), [[0.5, 3], [1.5, 4]])
        np.testing.assert_array_equal(np.asarray(curve.get_ydata()), X**2)
        np.testing.assert_array_equal(np.asarray(line.get_ydata()), estimate)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["training points", "the curve", "estimate"]
    save_figure(figure, tmp_path / "a.png", {"conventions": "x"})
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_wiggles_stand_beside_the_noise() -> None:
    figure = plot_wiggles(X, {"fixed": X / 10, "learned": X / 5}, [0.5], [-0.7])
    noise, fixed, learned = figure.axes[0].lines
    np.testing.assert_array_equal(np.asarray(noise.get_xydata()), [[0.5, -0.7]])
    np.testing.assert_array_equal(np.asarray(fixed.get_ydata()), X / 10)
    np.testing.assert_array_equal(np.asarray(learned.get_ydata()), X / 5)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["noise of a training point", "fixed", "learned"]


def test_kernels_are_gaussians_and_every_width_is_a_dot() -> None:
    figure = plot_kernels([0.0, 1.0, 2.0], [2.0, 2.0, 2.0], 1.0)
    shapes, widths = figure.axes
    fixed, learned = shapes.lines
    np.testing.assert_allclose(np.asarray(fixed.get_ydata()), np.exp(-0.5 * np.asarray(fixed.get_xdata()) ** 2))
    np.testing.assert_allclose(np.asarray(learned.get_ydata()), np.exp(-2 * np.asarray(learned.get_xdata()) ** 2))
    np.testing.assert_array_equal(np.asarray(widths.lines[0].get_xydata()), [[0, 2], [1, 2], [2, 2]])
    assert widths.get_ylim()[1] > 2


def test_maps_share_one_scale_and_say_where_rows_and_columns_are() -> None:
    maps = {"fixed": np.full((3, 2), 0.5), "learned": np.array([[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]])}
    figure = plot_weight_maps(maps, [0.0, 5.0, 10.0], [2.0, 8.0])
    first, second = figure.axes[:2]
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0, pytest.approx(1.0))
    np.testing.assert_array_equal(second.images[0].get_array(), maps["learned"])
    assert [label.get_text() for label in first.get_yticklabels()] == ["0.0", "5.0", "10.0"]
    assert [label.get_text() for label in second.get_xticklabels()] == ["2.0", "8.0"]


def test_errors_mark_the_gap_between_training_and_test() -> None:
    steps = [0.0, 10.0]
    lines = {"train": (steps, [0.9, 0.3]), "test": (steps, [0.9, 0.425]), "noise": (steps, [0.25, 0.25])}
    axes = plot_errors(lines).axes[0]
    assert [text.get_text() for text in axes.texts] == ["gap 0.125"]
    assert legend_texts(axes) == [ERRORS[name][0] for name in lines]
    assert axes.get_ylim()[0] == 0
    assert not plot_errors({"val": (steps, [1, 2])}).axes[0].texts


def test_the_cost_of_layers_has_a_line_each_on_logarithmic_axes() -> None:
    figure = layer_cost([64, 128], {"a": [1e-4, 2e-4], "b": [3e-3, 2.0]}, {"a": "first"})
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[1e-4, 2e-4], [3e-3, 2.0]]
    assert legend_texts(axes) == ["first", "b"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "128"]
    show = axes.yaxis.get_major_formatter()
    assert [show(value, 0) for value in (1e-5, 1e-3, 0.1, 1.0)] == ["10 µs", "1 ms", "100 ms", "1 s"]
