"""Every figure: what it shows, that it can be saved, and that drawing leaves nothing behind."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure

from vit.figures.calibration import Curve
from vit.figures.confusion_matrix import plot_confusion_matrix
from vit.figures.learning_curves import CONVENTIONS, plot_learning_curves
from vit.figures.reliability import plot_reliability
from vit.figures.schedule import plot_schedule
from vit.figures.style import save_figure

STEP = {"step": 1, "images_seen": 64, "train.loss": 2.0, "train.accuracy": 0.25, "lr": 1e-3}
EPOCH = {"step": 2, "images_seen": 128, "val.nll": 1.5, "val.top1": 0.5, "ema.val.top1": 0.6, "ema.val.nll": 1.4}


def titles(figure: Figure) -> list[str]:
    return [axes.get_title("left") for axes in figure.axes]


def texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_the_curves_hold_the_records_numbers() -> None:
    figure = plot_learning_curves([STEP, EPOCH, {**STEP, "images_seen": 192, "train.loss": 1.0}])
    assert titles(figure) == ["loss", "accuracy", "learning rate"]
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert np.asarray(lines["training"].get_xydata()).tolist() == [[64, 2.0], [192, 1.0]]
    assert np.asarray(lines["validation"].get_xydata()).tolist() == [[128, 1.5]]
    assert np.asarray(lines["validation, averaged weights"].get_xydata()).tolist() == [[128, 1.4]]
    assert np.asarray(figure.axes[2].lines[0].get_xydata()).tolist() == [[64, 1e-3], [192, 1e-3]]


def test_the_rate_is_drawn_from_the_schedule_where_it_is_given() -> None:
    rate = plot_learning_curves([STEP, EPOCH], ([0, 32, 128], [0.0, 0.1, 0.05])).axes[2].lines
    assert [np.asarray(line.get_xydata()).tolist() for line in rate] == [[[0, 0.0], [32, 0.1], [128, 0.05]]]


def test_an_image_more_or_less_does_not_look_like_a_trend() -> None:
    records = [{"epoch": epoch, "val.top1": 0.95 + 0.001 * epoch} for epoch in range(3)]
    (axes,) = plot_learning_curves(records).axes
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(0.05)
    assert low < 0.95 < 0.952 < high
    (axes,) = plot_learning_curves([{"epoch": 1, "val.top1": 1.0}]).axes
    assert axes.get_ylim()[1] == 1.005


@pytest.mark.parametrize(
    ("history", "panels"),
    [
        ([], [""]),
        ([{"step": 3}], [""]),
        ([STEP], ["loss", "accuracy", "learning rate"]),
        ([{"val.top1": 0.5}], ["accuracy"]),
        ([{"step": 1, "train.loss": math.nan}, {"step": 2, "train.loss": None}], [""]),
        ([{"epoch": 1, "ema.val.top1": 0.1}, {"epoch": 2, "ema.val.top1": None}], ["accuracy"]),
    ],
)
def test_missing_numbers_leave_out_panels(history: list[Any], panels: list[str], tmp_path: Path) -> None:
    figure = plot_learning_curves(history)
    assert titles(figure) == panels
    save_figure(figure, tmp_path / "curves.png", {"history": history, "conventions": CONVENTIONS})


def test_a_number_that_is_not_finite_is_a_gap() -> None:
    records = [{"step": step, "train.loss": loss} for step, loss in enumerate([3.0, math.nan, 2.0, None])]
    (line,) = plot_learning_curves(records).axes[0].lines
    np.testing.assert_array_equal(np.asarray(line.get_ydata()), [3.0, np.nan, 2.0, np.nan])


def test_many_noisy_records_get_a_running_mean() -> None:
    losses = np.tile([1.0, 3.0], 250)
    records = [{"images_seen": place, "train.loss": loss} for place, loss in enumerate(losses)]
    pale, mean = plot_learning_curves(records).axes[0].lines
    np.testing.assert_array_equal(np.asarray(pale.get_ydata()), losses)
    np.testing.assert_allclose(np.asarray(mean.get_ydata())[20:-20], 2.0, atol=0.11)
    few = plot_learning_curves(records[:20]).axes[0].lines
    assert len(few) == 1


def test_schedule_shows_the_rate() -> None:
    figure = plot_schedule([0, 1000, 2000], [0.0, 0.1, 0.05])
    assert np.asarray(figure.axes[0].lines[0].get_xydata()).tolist() == [[0, 0.0], [1000, 0.1], [2000, 0.05]]


def test_few_classes_are_written_out() -> None:
    figure = plot_confusion_matrix(np.array([[5, 1], [0, 0]]), ["cat", "dog"])
    axes = figure.axes[0]
    assert texts(axes) == ["5", "1"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cat", "dog"]
    np.testing.assert_allclose(
        np.ma.asarray(axes.images[0].get_array()).filled(np.nan), [[5 / 6, 1 / 6], [np.nan, np.nan]]
    )
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert figure.axes[-1].get_ylabel() == "share of the true class's images"


def test_many_classes_list_the_most_frequent_confusions() -> None:
    counts = np.diag(np.full(200, 50))
    counts[3, 7], counts[9, 1], counts[198, 199] = 4, 9, 1
    names = [f"class{index}" for index in range(200)]
    figure = plot_confusion_matrix(counts, names)
    beside = next(axes for axes in figure.axes if axes.get_title("left").startswith("most frequent"))
    listed = ["9  class9 → class1", "4  class3 → class7", "1  class198 → class199"]
    assert [text.strip() for text in texts(beside)] == listed
    assert len(figure.axes[0].get_xticks()) < 15


def test_no_mistakes_at_all(tmp_path: Path) -> None:
    figure = plot_confusion_matrix(np.eye(30, dtype=int), [str(index) for index in range(30)])
    save_figure(figure, tmp_path / "perfect.png", {"conventions": "rows: true class"})
    assert "no mistakes" in titles(figure)


def test_names_are_text_and_never_formulas(tmp_path: Path) -> None:
    figure = plot_confusion_matrix(np.eye(2, dtype=int), ["$\\wrong{$", "a_b$^"])
    save_figure(figure, tmp_path / "names.png", {"conventions": "rows: true class"})
    assert (tmp_path / "names.png").read_bytes().startswith(b"\x89PNG")
    assert "$\\wrong{$" in [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_reliability_bins_agree_with_the_metric() -> None:
    from vit.evaluation.metrics import calibration_curve, calibration_error

    rng = np.random.default_rng(0)
    confidences = rng.uniform(size=15 * 40)  # bins of equal size: the error is the mean gap
    correct = rng.uniform(size=len(confidences)) < confidences**2
    figure = plot_reliability(Curve(*calibration_curve(confidences, correct)), confidences)
    line = next(line for line in figure.axes[0].lines if line.get_label() == "bins of equal mass")
    assert len(figure.legends) == 1, "beside the panels: a curve may be anywhere in them"
    x, y = np.asarray(line.get_xydata()).T
    assert len(x) == 15
    assert np.abs(x - y).mean() == pytest.approx(calibration_error(confidences, correct), rel=1e-12)


def test_one_sample_has_a_reliability_diagram(tmp_path: Path) -> None:
    save_figure(
        plot_reliability(Curve(np.array([0.9]), np.array([1.0])), [0.9]),
        tmp_path / "one.png",
        {"conventions": "equal mass"},
    )
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_lie_beside_the_picture(tmp_path: Path) -> None:
    data: dict[Any, Any] = {
        "conventions": {"top1": "fraction"},
        "array": np.array([[1.5, np.nan]]),
        "tensor": torch.tensor([1, 2]),
        "number": np.float32(0.5),
        "inf": math.inf,
        3: "Öl",
    }
    save_figure(plot_schedule([0], [0.1]), tmp_path / "deep" / "a.png", data)
    assert (tmp_path / "deep" / "a.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((tmp_path / "deep" / "a.json").read_text(encoding="utf-8"))
    expected = {"array": [[1.5, None]], "tensor": [1, 2], "number": 0.5, "inf": None, "3": "Öl"}
    assert stored == {"conventions": {"top1": "fraction"}, **expected}


def test_numbers_without_conventions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="conventions"):
        save_figure(plot_schedule([0], [0.1]), tmp_path / "a.png", {"lr": [0.1]})


def test_drawing_changes_no_global_state(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    save_figure(plot_learning_curves([STEP, EPOCH]), tmp_path / "a.png", {"conventions": "x"})
    plot_confusion_matrix(np.eye(3, dtype=int), ["a", "b", "c"])
    assert dict(matplotlib.rcParams) == before
    assert Gcf.get_all_fig_managers() == []


def test_an_emoji_in_a_class_name_is_no_warning(tmp_path: Path) -> None:
    figure = plot_confusion_matrix(np.eye(2, dtype=int), ["\N{FOX FACE}", "cat"])
    save_figure(figure, tmp_path / "counts.png", {"counts": [], "conventions": "rows: true class"})
    assert (tmp_path / "counts.png").is_file()
