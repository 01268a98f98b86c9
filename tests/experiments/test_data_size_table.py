"""What is said of several runs together, by hand and beside scipy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scipy import stats

from vit.evaluation.statistics import accuracy_spread
from vit.experiments.data_size_table import data_size_markdown, summarize


def row(recipe: str, fraction: float, seed: int, top1: float) -> dict[str, Any]:
    return {
        "recipe": recipe,
        "fraction": fraction,
        "seed": seed,
        "num_images": round(1000 * fraction),
        "test.top1": top1,
        "test.n_total": 360,
        "params": 1234,
        "gmacs": 0.0034,
        "images_seen": 4000,
        "steps": 50,
    }


ROWS = [
    *(row("vit", 0.1, seed, top1) for seed, top1 in enumerate((0.6, 0.7, 0.8))),
    *(row("net", 0.1, seed, top1) for seed, top1 in enumerate((0.7, 0.8, 0.9))),
    *(row("vit", 1.0, seed, top1) for seed, top1 in enumerate((0.9, 0.92))),
    row("net", 1.0, 1, 0.95),
]


def test_spread_by_hand() -> None:
    found = accuracy_spread({0: 0.90, 1: 0.92, 2: 0.97})
    assert found["mean"] == pytest.approx(0.93)
    assert found["sd"] == pytest.approx(math.sqrt(0.0013))
    assert found["high"] - found["mean"] == pytest.approx(4.302652729911275 * math.sqrt(0.0013 / 3))
    assert (found["min"], found["max"]) == (0.90, 0.97)
    assert found["by_seed"] == {"0": 0.90, "1": 0.92, "2": 0.97}


def test_spread_is_scipys() -> None:
    values = [0.1, 0.5, 0.4, 0.8, 0.45]
    found = accuracy_spread(dict(enumerate(values)))
    wanted = stats.t.interval(0.95, 4, loc=found["mean"], scale=stats.sem(values))
    assert (found["low"], found["high"]) == pytest.approx(wanted)


def test_one_seed_has_no_spread() -> None:
    found = accuracy_spread({3: 0.5})
    assert (found["mean"], found["sd"], found["low"], found["high"]) == (0.5, None, None, None)


def test_differences_are_taken_within_a_seed() -> None:
    result = summarize(ROWS)
    small, whole = result["differences"]["net"]
    assert small["mean"] == pytest.approx(0.1)
    assert small["sd"] == pytest.approx(0, abs=1e-12), "each recipe varies by 10 points, their difference by none"
    assert result["curves"]["net"][0]["sd"] == pytest.approx(0.1)
    assert whole["by_seed"] == {"1": pytest.approx(0.03)}, "the seed that both have"
    assert "vit" not in result["differences"]


def test_the_table_says_what_was_measured() -> None:
    lines = data_size_markdown(summarize(ROWS)).splitlines()
    assert lines[0] == "| data | images | vit | net | net − vit |"
    assert lines[2] == "| 10 % | 100 | 70.00 ± 10.00 | 80.00 ± 10.00 | +10.00 [+10.00, +10.00] |"
    assert lines[3] == "| 100 % | 1,000 | 91.00 ± 1.41 | 95.00 | +3.00 |"
    assert "- net: 1,234 parameters, 0.0034 G multiply-adds an image, 4,000 images seen, 50 steps." in lines


@pytest.mark.parametrize(
    ("parts", "told"), [((), ""), ((0.1,), " (loss not finite with 10 %)"), ((0.1, 1.0), " (loss not finite)")]
)
def test_a_rate_that_diverged_is_told_with_its_parts_of_the_data(parts: tuple[float, ...], told: str) -> None:
    chosen = [{**each, "lr": 0.1, "chosen": True} for each in ROWS]
    tried = [{**each, "lr": 0.2, "chosen": False} for each in ROWS if each["seed"] == 0 and each["recipe"] == "vit"]
    tried = [each | ({"test.top1": None} if each["fraction"] in parts else {}) for each in tried]
    markdown = data_size_markdown(summarize([*chosen, *tried]))
    assert f"rates tried with the first seed: 0.1, 0.2{told}, best on validation images: 0.1 with 10 %" in markdown


@pytest.mark.parametrize(("lr", "is_at_an_end"), [(0.1, True), (0.2, False), (0.3, True)])
def test_a_best_rate_at_an_end_of_those_tried_is_told(lr: float, is_at_an_end: bool) -> None:
    tried = [{**each, "lr": rate, "chosen": rate == lr} for each in ROWS for rate in (0.1, 0.2, 0.3)]
    assert ("at an end of those tried" in data_size_markdown(summarize(tried))) == is_at_an_end


def test_recipes_of_unequal_numbers_of_seeds_say_theirs() -> None:
    said = data_size_markdown(summarize(ROWS))
    assert "%: mean over seeds (vit: 2 to 3, net: 1 to 3) ± standard deviation; differences in points" in said
    alike = data_size_markdown(summarize(ROWS[:6]))
    assert "mean over 3 seeds ±" in alike
