"""Two trained runs compared, from the command's request to the files it leaves."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.tiny import tiny
from vit.config import DataConfig, RunConfig
from vit.evaluation.checkpoint import Request, evaluate_checkpoint
from vit.evaluation.comparison import answers, contestants, costs, robustness
from vit.evaluation.comparison.additions import add_real_labels
from vit.evaluation.comparison.compare import CompareRequest, Comparison, compare
from vit.evaluation.comparison.images import baseline_request, resolve_data
from vit.evaluation.comparison.report import write_report
from vit.evaluation.speed import Speed
from vit.settings import run_config_from
from vit.training.loop import train

SETTINGS = {"train": {"epochs": 1, "precision": "fp32"}, "data": {"fake_images": 60}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A ViT, and the same from another seed that held out other images."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.training.tasks.classification_card.draw_run", lambda *_: None)
        train(tiny(**SETTINGS), folder / "vit")
        other = tiny(**SETTINGS, seed=1)
        train(replace(other, data=replace(other.data, split_seed=5)), folder / "other")
    return [str(folder / "vit"), str(folder / "other")]


@pytest.fixture(autouse=True)
def settings_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second each."""
    monkeypatch.setattr(contestants, "run_config_from", lambda content: _read(json.dumps(content)))


@cache
def _read(content: str) -> RunConfig:
    return run_config_from(json.loads(content))


Asking = Callable[..., CompareRequest]


@pytest.fixture(scope="module")
def data(runs: list[str]) -> DataConfig:
    return resolve_data(runs, None, [])


@pytest.fixture
def asking(runs: list[str], data: DataConfig, tmp_path: Path) -> Asking:
    def make(models: list[str] = runs, **options: Any) -> CompareRequest:
        return CompareRequest(models=models, data=data, output_dir=tmp_path, device="cpu", precision="fp32", **options)

    return make


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who is asked for answers, and about what."""
    names: list[str] = []
    ask = answers.predict_for

    def recording(contestant: Any, question: Any, **options: Any) -> Any:
        names.append(f"{contestant.name} {question.name}")
        return ask(contestant, question, **options)

    monkeypatch.setattr(answers, "predict_for", recording)
    return names


def test_a_runs_answers_are_taken_and_a_stopped_comparison_goes_on(asking: Asking, asked: list[str]) -> None:
    first = compare(asking()).result
    assert asked == ["vit val"]  # test answers are the runs' own
    assert [model["answers"] for model in first["models"]] == ["run", "run"]
    again = compare(asking()).result
    assert asked == ["vit val"]
    assert again == first


def test_stored_answers_of_runs_are_those_that_would_be_given(
    asking: Asking, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = compare(asking()).result
    monkeypatch.setattr(answers, "_of_run", lambda *_: None)
    now = compare(asking()).result
    assert asked == ["vit val", "vit test", "other test"]
    assert [model["answers"] for model in now["models"]] == ["asked", "asked"]
    for one, other in zip(stored["models"], now["models"], strict=True):
        assert one["top1"] == other["top1"]
        assert one["nll"] == pytest.approx(other["nll"], abs=1e-5)


def test_answers_of_other_weights_or_images_do_not_count(
    asking: Asking, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "_of_run", lambda *_: None)
    compare(asking())
    asked.clear()
    compare(asking(num_images=6))
    assert asked == ["vit test", "other test"]  # the six validation images are the same
    asked.clear()
    digest = "vit.evaluation.comparison.contestants.weights_digest"
    monkeypatch.setattr(digest, lambda _: "0" * 12)
    compare(asking(num_images=6))
    assert asked == ["vit test", "other test", "vit val"]


def test_some_images_are_the_same_for_all_and_classes_are_balanced(asking: Asking) -> None:
    found = compare(asking(num_images=6))
    assert found.result["data"]["images"] == 6
    assert torch.bincount(found.test.labels).tolist() == [2, 2, 2]
    for side in found.sides:
        assert side.test.indices.tolist() == found.test.indices.tolist()


def test_a_run_that_held_out_other_images_has_no_temperature(asking: Asking) -> None:
    vit, other = compare(asking()).result["models"]
    assert vit["calibration"]["n_validation"] == 6
    assert "held out other images" in other["calibration"]["reason"]


def test_identical_models(asking: Asking, runs: list[str]) -> None:
    result = compare(asking([runs[0], runs[0]])).result
    assert [model["name"] for model in result["models"]] == ["vit (1)", "vit (2)"]
    (pair,) = result["pairs"]
    assert pair["p"] == 1
    low, high = pair["top1_interval"]
    assert low <= 0 <= high
    assert result["warnings"] == []


def test_answers_of_vit_eval_count_too(asking: Asking, asked: list[str], runs: list[str]) -> None:
    """What the run left at its end is lost, and `vit eval` stored it anew."""
    predictions = Path(runs[1]) / "predictions"
    evaluate_checkpoint(Request(Path(runs[1])))
    (predictions / "test.npz").rename(predictions / "kept")
    try:
        result = compare(asking()).result
    finally:
        (predictions / "kept").rename(predictions / "test.npz")
        for path in predictions.glob("fake_*"):
            path.unlink()
    assert [model["answers"] for model in result["models"]] == ["run", "run"]
    assert "other test" not in asked


def test_the_librarys_model_beside_ours(asking: Asking, runs: list[str]) -> None:
    result = compare(asking([runs[0], "timm:test_vit"], random_weights=True)).result
    name = result["models"][1]["name"]
    assert name == "test_vit · RANDOM"
    assert result["warnings"][0].startswith(f"Never trained: {name}.")
    assert any(line.startswith("Different image sizes (vit: 8×8; test_vit") for line in result["warnings"])
    assert result["models"][1]["params"] > 0
    again = compare(asking([runs[0], "timm:test_vit"], random_weights=True)).result
    assert again["models"][1]["identity"] == result["models"][1]["identity"]
    assert again["models"][1]["answers"] == "stored"


def test_a_baseline_is_compared_on_what_the_run_is_evaluated_on(runs: list[str], tmp_path: Path) -> None:
    request = Request(Path(runs[0]), select="last", output_dir=tmp_path, overrides=["--data.workers", "1"])
    asked = baseline_request(request, "resnet50.a1_in1k")
    assert list(asked.models) == [runs[0], "timm:resnet50.a1_in1k"]
    assert (asked.data.name, asked.data.workers, asked.select) == ("fake", 1, "last")
    assert asked.output_dir == tmp_path / "comparison"
    assert list(baseline_request(request, runs[1]).models) == runs
    for changed, said in (({"weights": "raw"}, "--weights: 'raw'"), ({"image_size": 12}, "--image_size: 12")):
        with pytest.raises(ValueError, match=said):
            baseline_request(replace(request, **changed), "resnet18")


@pytest.fixture(scope="module")
def written(runs: list[str], data: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    folder = tmp_path_factory.mktemp("report")
    comparison = compare(CompareRequest(models=runs, data=data, output_dir=folder, device="cpu"))
    write_report(comparison, folder)
    return comparison, folder


def test_every_file_is_there_with_its_numbers(written: tuple[Comparison, Path]) -> None:
    comparison, folder = written
    result = comparison.result
    assert json.loads((folder / "comparison.json").read_text()) == json.loads(json.dumps(result))
    with (folder / "comparison.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["name"] for row in rows] == ["vit", "other"]
    assert float(rows[0]["top1"]) == result["models"][0]["top1"]
    assert float(rows[0]["top1_interval.low"]) == result["models"][0]["top1_interval"][0]
    with (folder / "comparison_classes.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == 3
    pictures = sorted(path.stem for path in (folder / "figures").glob("*.png"))
    assert {"accuracy", "differences", "agreement", "calibration", "only_right"} <= set(pictures)
    for name in pictures:
        assert json.loads((folder / "figures" / f"{name}.json").read_text())["conventions"]


def test_the_page_needs_nothing_beside_it(written: tuple[Comparison, Path]) -> None:
    text = (written[1] / "comparison.html").read_text()
    assert "<script" not in text
    for source in re.findall(r'(?:src|href)="([^"]{0,30})', text):
        assert source.startswith("data:image/png;base64,")
    assert text.count("<img") == len(list((written[1] / "figures").glob("*.png")))


def test_the_markdown_has_the_same_rows(written: tuple[Comparison, Path]) -> None:
    text = (written[1] / "comparison.md").read_text()
    for words in ("| top-1 |", "| ECE with temperature |", "| recipe |", "p (McNemar)", "held out other images"):
        assert words in text
    for path in re.findall(r"\]\((.*?)\)", text):
        assert (written[1] / path).is_file()


WRONG = [
    ({"models": ["/no/such", "/no/either"]}, r"model: '/no/such' is not valid: it is neither a folder"),
    ({"num_images": 0}, "--images: 0 is not valid"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_wrong_requests(asking: Asking, runs: list[str], changed: dict[str, Any], said: str) -> None:
    options = changed if "models" not in changed else {}
    with pytest.raises(ValueError, match=said):
        compare(replace(asking(runs, **options), **changed))


# ------------------------------------------------------------------ what is asked for besides


def test_speed_and_memory_are_added_with_their_conventions(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"vit": Speed(10.0, 8.0, 12.0, (8.0, 10.0, 12.0)), "other": Speed(20.0, 18.0, 22.0, (20.0,))}
    monkeypatch.setattr(costs, "speeds_in_turns", lambda *_, **__: times)
    result = compare(asking(speed=True, speed_batch_size=3)).result
    vit, other = result["models"]
    assert (vit["images_per_second"], other["images_per_second_range"]) == (10.0, [18.0, 22.0])
    assert vit["peak_bytes"] > 4 * vit["params"]
    assert "batches of 3 on cpu" in result["conventions"]["measured"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speed_batch_size": 3}, "--speed_batch_size: 3 is not valid: it has an effect only with --speed"),
        ({"random_weights": True}, "--random_weights: True is not valid: it has an effect only on models of libraries"),
    ],
)
def test_an_option_without_effect_is_an_error(asking: Asking, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        asking(**options)


def test_corrupted_images_are_asked_about_once(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds at two strengths, stopped after three of the first model's five passes."""
    monkeypatch.setattr(robustness, "KINDS", ("brightness", "contrast"))
    monkeypatch.setattr(robustness, "STRENGTHS", (1, 5))
    ask, passes = robustness.predict_for, []

    def asked(contestant: Any, question: Any, **options: Any) -> Any:
        source = question.split.source
        passes.append((contestant.name, source.kind if source.strength else "clean", source.strength))
        if len(passes) == 4:
            raise KeyboardInterrupt
        return ask(contestant, question, **options)

    monkeypatch.setattr(robustness, "predict_for", asked)
    with pytest.raises(KeyboardInterrupt):
        compare(asking(corruptions=True))
    result = compare(asking(corruptions=True)).result
    expected = [("clean", 0), ("brightness", 1), ("brightness", 5), ("contrast", 1), ("contrast", 5)]
    assert passes[:4] == [("vit", *each) for each in expected[:4]]
    assert passes[4:] == [("vit", *each) for each in expected[3:]] + [("other", *each) for each in expected]
    found = result["corruptions"]
    assert found["mce"]["vit"] == pytest.approx(1)
    means = [sum(values) / 2 for values in found["accuracy"]["other"].values()]
    assert result["models"][1]["corrupted_top1"] == pytest.approx(sum(means) / 2)


def test_real_labels_need_imagenets_head(asking: Asking, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--real_labels: .* no model has a head of ImageNet's thousand classes"):
        compare(asking(real_labels=tmp_path / "real.json"))


def test_real_labels_of_a_thousand_classes() -> None:
    """Three images: answered 7 (of 7 or 8), answered 1 (of 2), and one without labels."""
    result: dict[str, Any] = {"conventions": {}, "models": [{"name": "a"}, {"name": "b"}]}
    predictions = SimpleNamespace(indices=np.array([3, 5, 9]))
    of_1000 = SimpleNamespace(predictions=predictions, answers_of_1000=np.array([7, 1, 4]))
    of_few = SimpleNamespace(predictions=predictions, answers_of_1000=None)
    add_real_labels(result, [of_1000, of_few], {3: [7, 8], 5: [2], 9: []})
    assert (result["models"][0]["real_top1"], result["models"][0]["real_judged"]) == (0.5, 2)
    assert "real_top1" not in result["models"][1]
