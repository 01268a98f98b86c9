"""The figures of translation: what they show, and that they can be saved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from tests.figures.legends import legend_texts
from vit.figures.alignment import plot_alignment
from vit.figures.bleu_by_length import plot_bleu_by_length
from vit.figures.style import save_figure


def labels(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_an_alignment_has_a_row_for_each_target_token(tmp_path: Path) -> None:
    weights = np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
    figure = plot_alignment(weights, ["Ein", " Mann", "<eos>"], [" A", "$man{"])
    axes = figure.axes[0]
    assert labels(axes.xaxis) == ["Ein", "Mann", "<eos>"]
    assert labels(axes.yaxis) == ["A", "$man{"]
    np.testing.assert_array_equal(axes.images[0].get_array(), weights)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("source", "translation")
    assert axes.images[0].get_clim() == (0, 1)
    save_figure(figure, tmp_path / "alignment.png", {"weights": weights, "conventions": "rows: target"})
    assert (tmp_path / "alignment.png").read_bytes().startswith(b"\x89PNG")


def test_long_sentences_make_a_larger_picture() -> None:
    small, large = (plot_alignment(np.ones((n, n)) / n, ["a"] * n, ["b"] * n).get_size_inches() for n in (5, 50))
    assert (large > 2 * small).all()


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="2 target and 3 source"):
        plot_alignment(np.ones((3, 2)), ["a", "b", "c"], ["a", "b"])


def row(low: int, high: int, bleu: float, spread: float) -> dict[str, float]:
    return {"low": low, "high": high, "sentences": 7, "bleu": bleu, "lower": bleu - spread, "upper": bleu + spread}


ROWS = [row(1, 8, 30.0, 2.0), row(8, 9, 20.0, 1.0), row(9, 12, math.nan, 0.0)]


def test_bleu_by_length_shows_values_and_intervals(tmp_path: Path) -> None:
    other = [{**entry, "bleu": entry["bleu"] + 5, "upper": entry["upper"] + 5} for entry in ROWS]
    figure = plot_bleu_by_length({"rnn": ROWS, "attention": other})
    axes = figure.axes[0]
    assert labels(axes.xaxis) == ["1–7\n7", "8\n7", "9–11\n7"]
    container = axes.containers[1]
    assert isinstance(container, ErrorbarContainer)
    lines, _, bars = container.lines
    np.testing.assert_array_equal(lines.get_ydata(), [35, 25, np.nan])
    assert [bar[:, 1].tolist() for bar in bars[0].get_segments()[:2]] == [[28, 37], [19, 26]]
    assert legend_texts(axes) == ["rnn", "attention"]
    save_figure(figure, tmp_path / "bleu.png", {"rows": ROWS, "conventions": "BLEU"})
    assert (tmp_path / "bleu.png").read_bytes().startswith(b"\x89PNG")


def test_an_interval_beside_its_value_can_be_drawn() -> None:
    figure = plot_bleu_by_length({"a": [{**ROWS[0], "lower": 31.0}]})
    container = figure.axes[0].containers[0]
    assert isinstance(container, ErrorbarContainer)
    (bars,) = container.lines[2]
    assert bars.get_segments()[0][:, 1].tolist() == [30, 32], "from the value itself, which lies below its interval"


def test_other_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match="same buckets"):
        plot_bleu_by_length({"a": ROWS, "b": ROWS[:2]})
