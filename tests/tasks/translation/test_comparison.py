"""Two trained translators beside each other, by the command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.tasks.translation.test_training import COPYING
from tests.training.tiny import tiny
from vit.cli import main
from vit.tasks.translation.config import TextDataConfig
from vit.tasks.translation.evaluation import length_edges
from vit.tasks.translation.metrics import (
    Translations,
    bootstrap_difference,
    bootstrap_interval,
    corpus_bleu,
    sentence_statistics,
)
from vit.training.loop import train


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.translation.report.draw_run", lambda *_: None)
        train(COPYING, folder / "one")
        train(replace(COPYING, seed=1), folder / "two")
    return folder


def test_the_command_judges_both_and_draws(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs / "one"), str(runs / "two"), "--output_dir", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "comparison.json").read_text())
    pair = result["differences"][0]
    bleus = {name: model["bleu"] for name, model in result["models"].items()}
    assert pair["bleu"] == pytest.approx(bleus["one"] - bleus["two"])
    assert pair["lower"] <= pair["bleu"] <= pair["upper"]
    assert (tmp_path / "bleu_by_length.png").stat().st_size > 0
    assert len(Translations.load(tmp_path / "two.jsonl")) == 7
    assert f"one: BLEU {bleus['one']:.2f}" in capsys.readouterr().out


def test_a_model_beside_itself_differs_by_nothing(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "one", tmp_path / "again")
    assert main(["compare", str(runs / "one"), str(tmp_path / "again"), "--output_dir", str(tmp_path / "out")]) == 0
    pair = json.loads((tmp_path / "out" / "comparison.json").read_text())["differences"][0]
    assert (pair["bleu"], pair["lower"], pair["upper"]) == (0, 0, 0)


def test_another_comparison_in_the_folder_is_put_aside(runs: Path, tmp_path: Path) -> None:
    words = ["compare", str(runs / "one"), str(runs / "two"), "--output_dir", str(tmp_path)]
    assert main(words) == 0
    assert main(words) == 0
    assert not (tmp_path / "earlier-1").exists(), "the same models and results"
    assert main([*words[:1], *words[2:0:-1], *words[3:]]) == 0
    aside = tmp_path / "earlier-1"
    assert list(json.loads((aside / "comparison.json").read_text())["models"]) == ["one", "two"]
    assert (aside / "one.jsonl").is_file()
    assert (aside / "bleu_by_length.png").is_file()
    images = {"models": [{"source": "a"}]}
    (tmp_path / "comparison.json").write_text(json.dumps(images))
    (tmp_path / "comparison.md").write_text("a page")
    assert main(words) == 0
    assert json.loads((tmp_path / "earlier-2" / "comparison.json").read_text()) == images
    assert (tmp_path / "earlier-2" / "comparison.md").is_file()


def test_translations_of_other_models_are_put_aside_with_their_comparison(runs: Path, tmp_path: Path) -> None:
    for name in ("three", "four"):
        shutil.copytree(runs / "one", tmp_path / name)
    output = tmp_path / "output"
    for pair in ([runs / "one", runs / "two"], [tmp_path / "three", tmp_path / "four"]):
        assert main(["compare", *map(str, pair), "--output_dir", str(output)]) == 0
    assert {path.name for path in output.glob("*.jsonl")} == {"three.jsonl", "four.jsonl"}
    assert {path.name for path in (output / "earlier-1").glob("*.jsonl")} == {"one.jsonl", "two.jsonl"}


def test_wrong_input_is_one_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    train(tiny(train={"epochs": 1}), tmp_path / "images")
    one = str(runs / "one")
    wrong = {
        "it is a run of task 'classification'": [one, str(tmp_path / "images")],
        "the folders' names are the models' names": [one, one],
        "a picture holds at most 6": [one] * 7,
        "--images: it has no effect here": [one, str(runs / "two"), "--images", "5"],
    }
    for said, words in wrong.items():
        assert main(["compare", *words, "--output_dir", str(tmp_path / "out")]) == 2
        found = capsys.readouterr().err.strip().splitlines()
        assert said in found[-1]
    assert not (tmp_path / "out").exists()


def test_paired_resamples_see_a_difference_that_single_intervals_hide() -> None:
    """The second is the first with one word wrong in every sentence: every resample is worse."""
    references = [" ".join(f"w{i}{j}" for j in range(5 + i % 7)) for i in range(40)]
    hypotheses = [reference if i % 3 else reference + " more" for i, reference in enumerate(references)]
    worse = [f"wrong {hypothesis}" for hypothesis in hypotheses]
    better, beaten = (
        sentence_statistics(Translations(list(range(40)), references, references, side)) for side in (hypotheses, worse)
    )
    lower, upper = bootstrap_difference(better, beaten, resamples=200)
    single = [bootstrap_interval(side, resamples=200, seed=0) for side in (better, beaten)]
    assert upper - lower < max(high - low for low, high in single), "drawn apart, a difference varies more than either"
    assert 0 < lower < corpus_bleu(better) - corpus_bleu(beaten) < upper
    assert np.allclose(bootstrap_difference(beaten, better, resamples=200), (-upper, -lower))


def test_edges_hold_every_length() -> None:
    edges = length_edges(TextDataConfig(name="copying", copying_lengths=(5, 40), max_length=40))
    assert edges == (5, 11, 17, 23, 29, 35, 41)
    assert length_edges(TextDataConfig(name="copying", copying_lengths=(3, 4), max_length=4)) == (3, 4, 5)
