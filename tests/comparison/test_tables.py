"""Tables and sentences of a comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vit.comparison.metrics import ModelPredictions, Resampling, comparison_metrics
from vit.comparison.page import comparison_page, page_markdown
from vit.comparison.tables import models_table, p_value, pairs_table, short_labels, verdict, verdicts
from vit.evaluation.html_page import html_cell
from vit.evaluation.predictions import Predictions


def result(names: list[str], num_right: list[int], total: int = 100) -> dict[str, Any]:
    """Models that are right on the first so many of `total` images."""
    models = []
    for name, right in zip(names, num_right, strict=True):
        labels = np.zeros(total, dtype=np.int64)
        logits = np.zeros((total, 2), dtype=np.float32)
        logits[right:, 1] = logits[:right, 0] = 2
        models.append(
            ModelPredictions(
                name, Predictions(np.arange(total), labels, logits, ["ant", "bee"], total, 0), None, "none"
            )
        )
    return comparison_metrics(models, Resampling(500))


def test_who_is_ahead_and_whether_it_can_be_told() -> None:
    (line,) = verdicts(result(["a", "b"], [50, 80]))
    assert line.startswith("b is 30.0 points ahead of a (95 % interval +")
    assert line.endswith("McNemar p = 2e-09).")
    (line,) = verdicts(result(["a", "b"], [52, 50]))
    assert line.startswith("a is 2.0 points ahead of b (95 % interval 0.0 to +")
    assert line.endswith("McNemar p = 0.5): not significant on these images.")
    (line,) = verdicts(result(["a", "b"], [50, 50]))
    assert line == "a and b are level (95 % interval 0.0 to 0.0; McNemar p = 1)."


def test_of_several_pairs_the_adjusted_p_decides() -> None:
    """p = 2/2⁶ = .031 of a pair, .094 of three."""
    lines = verdicts(result(["a", "b", "c"], [56, 50, 50]))
    assert "McNemar p = 0.031, 0.094 adjusted for 3 pairs): not significant" in lines[0]


def test_long_names_become_letters_where_there_is_little_room() -> None:
    assert short_labels(result(["a", "b"], [1, 2])) == {"a": "a", "b": "b"}
    long = result(["vit_base_patch16_224", "b"], [1, 2])
    assert short_labels(long) == {"vit_base_patch16_224": "A", "b": "B"}
    assert pairs_table(long).rows[0][:3] == ["A − B", "−1.00 (−3.0 to 0.0)", "0 | 1"]
    many = short_labels({"models": [{"name": f"vit_base_patch16_{place}"} for place in range(54)]})
    assert list(many.values())[24:29] == ["Y", "Z", "AA", "AB", "AC"]
    assert list(many.values())[-2:] == ["BA", "BB"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("vit_base.a1", "vit_<wbr>base.<wbr>a1"),
        ("0.5/0.4 (0.1–1.8)", "0.5/0.4 (0.1–1.8)"),
        ("<b> & co", "&lt;b&gt; &amp; co"),
    ],
)
def test_names_may_break_and_numbers_may_not(words: str, expected: str) -> None:
    assert html_cell(words) == expected


def test_top_5_of_five_classes_is_no_row_and_few_images_for_a_temperature_are_marked() -> None:
    def rows_and_note(num_classes: int, num_validation: int, at_limit: bool = False) -> tuple[dict[str, str], str]:
        found = result(["a", "b"], [1, 2]) | {"data": {"classes": num_classes}}
        for model in found["models"]:
            model |= {"params": 1, "gmacs": 1.0, "predictions": "computed", "unrestricted_top1": None}
            model["calibration"] = {"temperature": 1.5, "n_validation": num_validation, "at_limit": at_limit}
        table = models_table(found)
        return {row[0]: row[1] for row in table.rows}, table.note

    few, note = rows_and_note(5, 199)
    assert "top-1" in few
    assert "top-5" not in few
    assert few["temperature, fitted on validation"] == "1.500 (199 images, few)"
    assert "fewer than 200 images" in note
    many, note = rows_and_note(6, 200)
    assert "top-5" in many
    assert many["temperature, fitted on validation"] == "1.500 (200 images)"
    limit, _ = rows_and_note(6, 200, at_limit=True)
    assert limit["temperature, fitted on validation"] == "undetermined (200 images)"
    assert note == ""


def test_a_bar_in_a_name_does_not_break_the_table() -> None:
    found = result(["a|x", "b"], [1, 2])
    found |= {"data": {"images": 1, "name": "d", "classes": 2, "fingerprint": "f"}, "resamples": 1, "seed": 0}
    found |= {"warnings": [], "conventions": {}, "versions": {}}
    for model in found["models"]:
        model |= {
            "params": 1,
            "gmacs": 1.0,
            "predictions": "computed",
            "unrestricted_top1": None,
            "provenance": {"x": "y"},
        }
    assert "|  | a\\|x | b |" in page_markdown(comparison_page(found), {})


def test_a_p_that_is_too_small_for_a_float_is_a_bound() -> None:
    assert [p_value(value) for value in (0.25, 3e-7, 0.0)] == ["0.25", "3e-07", "<1e-300"]
    pair = {"first": "a", "second": "b", "p": 0.0, "p_holm": 0.0}
    assert verdict(pair, 0.2, (0.1, 0.3), 1) == (
        "a is 20.0 points ahead of b (95 % interval +10.0 to +30.0; McNemar p < 1e-300)."
    )
