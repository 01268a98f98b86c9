"""Two trained runs compared, from the command's request to the files it writes."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.tiny import tiny
from vit.cli.compare import baseline_request
from vit.cli.images import resolve_data
from vit.comparison import costs, predictions, robustness
from vit.comparison.compare import CompareRequest, Comparison, compare_models
from vit.comparison.metrics import Resampling
from vit.comparison.predictions import EvalResult, compute_predictions, get_predictions
from vit.comparison.real_labels import add_real_labels
from vit.comparison.report import keep_earlier_report, write_report
from vit.config import DataConfig
from vit.evaluation.metrics import calibration_curve
from vit.evaluation.predictions import Predictions
from vit.evaluation.speed import Speed
from vit.hub import open_model
from vit.tasks.task import EvalRequest
from vit.trained_runs import evaluate_checkpoint
from vit.training.loop import train

SETTINGS: dict[str, Any] = {"train": {"epochs": 1, "precision": "fp32"}, "data": {"fake_images": 60}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A ViT, and the same from another seed that held out other images."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        train(tiny(**SETTINGS), folder / "vit")
        other = tiny(**SETTINGS, seed=1)
        train(replace(other, data=replace(other.data, split_seed=5)), folder / "other")
    return [str(folder / "vit"), str(folder / "other")]


MakeRequest = Callable[..., CompareRequest]


@pytest.fixture(scope="module")
def data(runs: list[str]) -> DataConfig:
    return resolve_data(runs, None, [])


@pytest.fixture
def make_request(runs: list[str], data: DataConfig, tmp_path: Path) -> MakeRequest:
    def make(models: list[str] = runs, **options: Any) -> CompareRequest:
        return CompareRequest(models=models, data=data, output_dir=tmp_path, device="cpu", precision="fp32", **options)

    return make


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Models whose predictions are computed, each with the name of the set."""
    names: list[str] = []
    compute = predictions.compute_predictions

    def recording(model: Any, eval_set: Any, **options: Any) -> Any:
        names.append(f"{model.name} {eval_set.name}")
        return compute(model, eval_set, **options)

    monkeypatch.setattr(predictions, "compute_predictions", recording)
    return names


def test_a_runs_predictions_are_used_and_a_stopped_comparison_continues(
    make_request: MakeRequest, computed: list[str]
) -> None:
    first = compare_models(make_request()).result
    assert computed == ["vit val"]  # test predictions are the runs' own
    assert [(model["predictions"], model["precision"]) for model in first["models"]] == [("run", "fp32")] * 2
    again = compare_models(make_request()).result
    assert computed == ["vit val"]
    assert again == first


def test_stored_predictions_of_runs_equal_computed_ones(
    make_request: MakeRequest, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = compare_models(make_request()).result
    monkeypatch.setattr(predictions, "_run_predictions", lambda *_: None)
    now = compare_models(make_request()).result
    assert computed == ["vit val", "vit test", "other test"]
    assert [model["predictions"] for model in now["models"]] == ["computed", "computed"]
    for one, other in zip(stored["models"], now["models"], strict=True):
        assert one["top1"] == other["top1"]
        assert one["nll"] == pytest.approx(other["nll"], abs=1e-5)


def test_predictions_of_other_weights_or_images_are_not_used(
    make_request: MakeRequest, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "_run_predictions", lambda *_: None)
    compare_models(make_request())
    computed.clear()
    compare_models(make_request(num_images=6))
    assert computed == ["vit test", "other test"]  # the six validation images are the same
    computed.clear()
    digest = "vit.hub.opened.model_digest"
    monkeypatch.setattr(digest, lambda _: "0" * 12)
    compare_models(make_request(num_images=6))
    assert computed == ["vit test", "other test", "vit val"]


def test_a_runs_predictions_are_not_those_of_another_image_size(make_request: MakeRequest, computed: list[str]) -> None:
    result = compare_models(make_request(options={"image_size": [12, None]})).result
    assert [model["predictions"] for model in result["models"]] == ["computed", "run"]
    assert "vit test" in computed


def test_one_model_at_two_sizes_is_computed_once_at_each(
    make_request: MakeRequest, computed: list[str], runs: list[str]
) -> None:
    request = make_request([runs[0]] * 2, options={"image_size": [12, 16]})
    compare_models(request)
    assert computed
    computed.clear()
    compare_models(request)
    assert computed == []


def test_a_runs_predictions_are_not_those_of_its_raw_weights(
    make_request: MakeRequest, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    averaged = tmp_path / "averaged"
    train(tiny(train={"epochs": 1, "ema_decay": 0.5}, data=SETTINGS["data"]), averaged)
    models = [str(averaged), runs[0]]
    with_average = compare_models(make_request(models)).result
    raw = compare_models(make_request(models, options={"weights": "raw"})).result
    assert with_average["models"][0]["predictions"] == "run"
    assert raw["models"][0]["predictions"] == "computed"
    assert raw["models"][0]["nll"] != with_average["models"][0]["nll"]


def test_some_images_are_the_same_for_all_and_classes_are_balanced(make_request: MakeRequest) -> None:
    found = compare_models(make_request(num_images=6))
    assert found.result["data"]["images"] == 6
    assert torch.bincount(found.test.labels).tolist() == [2, 2, 2]
    for each in found.predictions:
        assert each.test.indices.tolist() == found.test.indices.tolist()


def test_a_run_that_held_out_other_images_has_no_temperature(make_request: MakeRequest) -> None:
    vit, other = compare_models(make_request()).result["models"]
    assert vit["calibration"]["n_validation"] == 6
    assert "held out other images" in other["calibration"]["reason"]


def test_images_that_any_model_could_not_read_are_counted_together(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, missing = get_predictions, {"vit": 0, "other": 1}

    def without_one(model: Any, *given: Any) -> EvalResult:
        found = read(model, *given)
        kept = np.arange(len(found.predictions.labels)) != missing[model.name]
        seen = {name: getattr(found.predictions, name)[kept] for name in ("indices", "labels", "logits")}
        return replace(found, predictions=replace(found.predictions, **seen, num_broken=1))

    monkeypatch.setattr("vit.comparison.compare.get_predictions", without_one)
    result = compare_models(make_request(num_images=6)).result
    assert "2 images could not be read; the models are compared on the others." in result["warnings"]
    monkeypatch.setitem(missing, "other", 0)
    result = compare_models(make_request(num_images=6)).result
    assert "1 image could not be read; the models are compared on the others." in result["warnings"]


def test_identical_models(make_request: MakeRequest, runs: list[str]) -> None:
    result = compare_models(make_request([runs[0], runs[0]])).result
    assert [model["name"] for model in result["models"]] == ["vit (1)", "vit (2)"]
    (pair,) = result["pairs"]
    assert pair["p"] == 1
    low, high = pair["top1_interval"]
    assert low <= 0 <= high
    assert result["warnings"] == []


def test_predictions_of_vit_eval_are_used_too(make_request: MakeRequest, computed: list[str], runs: list[str]) -> None:
    """The run's own predictions are missing, but `vit eval` stored new ones."""
    predictions = Path(runs[1]) / "predictions"
    evaluate_checkpoint(EvalRequest(Path(runs[1])))
    (predictions / "test.npz").rename(predictions / "kept")
    try:
        result = compare_models(make_request()).result
    finally:
        (predictions / "kept").rename(predictions / "test.npz")
        for path in predictions.glob("fake_*"):
            path.unlink()
    assert [model["predictions"] for model in result["models"]] == ["run", "run"]
    assert "other test" not in computed


def test_the_librarys_model_beside_ours(make_request: MakeRequest, runs: list[str]) -> None:
    result = compare_models(make_request([runs[0], "timm:test_vit"], options={"random_weights": True})).result
    name = result["models"][1]["name"]
    assert name == "test_vit · RANDOM"
    assert result["warnings"][0].startswith(f"Never trained: {name}.")
    assert any(line.startswith("Different image sizes (vit: 8×8; test_vit") for line in result["warnings"])
    assert result["models"][1]["params"] > 0
    again = compare_models(make_request([runs[0], "timm:test_vit"], options={"random_weights": True})).result
    assert again["models"][1]["identity"] == result["models"][1]["identity"]
    assert again["models"][1]["predictions"] == "stored"


def test_a_baseline_is_compared_on_what_the_run_is_evaluated_on(runs: list[str], tmp_path: Path) -> None:
    request = EvalRequest(Path(runs[0]), select="last", output_dir=tmp_path)
    words = ["--data.workers", "1"]
    asked = baseline_request(request, words, "timm:resnet50.a1_in1k")
    assert list(asked.models) == [runs[0], "timm:resnet50.a1_in1k"]
    assert (asked.data.name, asked.data.workers, asked.options) == ("fake", 1, {"select": "last"})
    assert asked.output_dir == tmp_path / "comparison"
    assert list(baseline_request(request, words, runs[1]).models) == runs
    for changed, said in (({"weights": "raw"}, "--weights: 'raw'"), ({"image_size": 12}, "--image_size: 12")):
        with pytest.raises(ValueError, match=said):
            baseline_request(replace(request, **changed), words, "resnet18")


@pytest.fixture(scope="module")
def written(runs: list[str], data: DataConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    folder = tmp_path_factory.mktemp("report")
    comparison = compare_models(CompareRequest(models=runs, data=data, output_dir=folder, device="cpu"))
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


def test_the_figure_of_calibration_has_the_points_after_the_temperature_too(
    written: tuple[Comparison, Path],
) -> None:
    comparison, folder = written
    vit, other = json.loads((folder / "figures" / "calibration.json").read_text())["models"]
    temperature = comparison.result["models"][0]["calibration"]["temperature"]
    test = comparison.predictions[0].test
    for points, divisor in ((vit["before"], 1), (vit["after"], temperature)):
        scaled = torch.from_numpy(test.logits).double() / divisor
        sure, predicted = scaled.softmax(dim=1).max(dim=1)
        expected = calibration_curve(sure.numpy(), predicted.numpy() == test.labels)
        for values, found in zip(points.values(), expected, strict=True):
            assert values == pytest.approx(found.tolist())
    assert vit["after"] != vit["before"]
    assert other["after"] is None


def test_a_report_on_other_images_of_the_same_names_is_put_aside(tmp_path: Path) -> None:
    """Reports of earlier versions do not tell sizes."""
    data = {"root": str(tmp_path / "photos"), "fingerprint": "f", "sizes": "1"}
    first: dict[str, Any] = {"data": data, "models": []}
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"root": str(tmp_path / "others")}, True),
        ({"sizes": "2"}, True),
        ({"sizes": None}, False),
    ]
    for number, (changed, put_aside) in enumerate(cases):
        folder = tmp_path / str(number)
        before = {name: value for name, value in (data | changed).items() if value is not None}
        folder.mkdir()
        (folder / "comparison.json").write_text(json.dumps({"data": before, "models": []}))
        keep_earlier_report(folder, "comparison", first)
        assert (folder / "earlier-1").exists() == put_aside, changed


def test_the_page_needs_nothing_beside_it(written: tuple[Comparison, Path]) -> None:
    text = (written[1] / "comparison.html").read_text()
    assert "<script" not in text
    for source in re.findall(r'(?:src|href)="([^"]{0,30})', text):
        assert source.startswith("data:image/png;base64,")
    assert text.count("<img") == len(list((written[1] / "figures").glob("*.png")))


def test_the_markdown_has_the_same_rows(written: tuple[Comparison, Path]) -> None:
    text = (written[1] / "comparison.md").read_text()
    for words in (
        "| top-1 |",
        "| ECE, equal mass, with temperature |",
        "| recipe |",
        "p (McNemar)",
        "held out other images",
    ):
        assert words in text
    for path in re.findall(r"\]\((.*?)\)", text):
        assert (written[1] / path).is_file()


WRONG = [
    ({"models": ["/no/such", "/no/either"]}, r"model: '/no/such' is not valid: there is no such file or folder"),
    ({"num_images": 0}, "--images: 0 is not valid"),
    ({"resampling": Resampling(10_000, -1)}, "--seed: -1 is not valid"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_wrong_requests(make_request: MakeRequest, runs: list[str], changed: dict[str, Any], said: str) -> None:
    options = changed if "models" not in changed else {}
    with pytest.raises(ValueError, match=said):
        compare_models(replace(make_request(runs, **options), **changed))


def test_the_seed_is_that_of_an_architectures_random_weights(data: DataConfig, tmp_path: Path) -> None:
    models, resampling = ["vit", "resnet18"], Resampling(10_000, 5)
    request = CompareRequest(models=models, data=data, output_dir=tmp_path, resampling=resampling)
    opened = [model.identity for model in request.open_models(num_classes=3)]
    assert opened == [open_model(model, seed=5, num_classes=3).identity for model in models]


# ------------------------------------------------------------------ optional measurements


def test_speed_and_memory_are_added_with_their_conventions(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"vit": Speed(10.0, 8.0, 12.0, (8.0, 10.0, 12.0)), "other": Speed(20.0, 18.0, 22.0, (20.0,))}
    monkeypatch.setattr(costs, "interleaved_speeds", lambda *_, **__: times)
    result = compare_models(make_request(speed=True, speed_batch_size=3)).result
    vit, other = result["models"]
    assert (vit["images_per_second"], other["images_per_second_range"]) == (10.0, [18.0, 22.0])
    assert vit["peak_bytes"] > 4 * vit["params"]
    assert "batches of 3 on cpu" in result["conventions"]["measured"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"speed_batch_size": 3}, "--speed_batch_size: 3 is not valid: it has an effect only with --speed"),
        ({"options": {"random_weights": True}}, "--random_weights: True is not valid: it has no effect on"),
    ],
)
def test_an_option_without_effect_is_an_error(make_request: MakeRequest, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare_models(make_request(**options))


def test_every_corruption_is_evaluated_once(make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds at two severities, stopped after three of the first model's five passes."""
    monkeypatch.setattr(robustness, "KINDS", ("brightness", "contrast"))
    monkeypatch.setattr(robustness, "SEVERITIES", (1, 5))
    compute, passes = compute_predictions, []

    def recording(model: Any, eval_set: Any, **options: Any) -> Any:
        source = eval_set.split.source
        passes.append((model.name, source.kind if source.severity else "clean", source.severity))
        if len(passes) == 4:
            raise KeyboardInterrupt
        return compute(model, eval_set, **options)

    monkeypatch.setattr(robustness, "compute_predictions", recording)
    with pytest.raises(KeyboardInterrupt):
        compare_models(make_request(corruptions=True))
    result = compare_models(make_request(corruptions=True)).result
    expected = [("clean", 0), ("brightness", 1), ("brightness", 5), ("contrast", 1), ("contrast", 5)]
    assert passes[:4] == [("vit", *each) for each in expected[:4]]
    assert passes[4:] == [("vit", *each) for each in expected[3:]] + [("other", *each) for each in expected]
    found = result["corruptions"]
    assert found["mce"]["vit"] == pytest.approx(1)
    means = [sum(values) / 2 for values in found["accuracy"]["other"].values()]
    assert result["models"][1]["corrupted_top1"] == pytest.approx(sum(means) / 2)


def test_measured_corruptions_outlast_a_comparison_with_other_options(
    make_request: MakeRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those in a file named as by earlier versions."""
    monkeypatch.setattr(robustness, "KINDS", ("brightness",))
    monkeypatch.setattr(robustness, "SEVERITIES", (1,))
    compute, passes = compute_predictions, list[str]()

    def recording(model: Any, eval_set: Any, **options: Any) -> Any:
        passes.append(model.name)
        return compute(model, eval_set, **options)

    monkeypatch.setattr(robustness, "compute_predictions", recording)
    compare_models(make_request(num_images=6, corruptions=True))
    files = list((tmp_path / "predictions").glob("*_corruptions_*.json"))
    compare_models(make_request(num_images=3, corruptions=True))
    assert len(passes) == 8
    compare_models(make_request(num_images=6, corruptions=True))
    for file in files:
        file.rename(file.with_name(re.sub(r"_corruptions_\w+", "_corruptions", file.name)))
    compare_models(make_request(num_images=6, corruptions=True))
    assert len(passes) == 8


def test_logits_of_corrupted_images_that_are_not_finite_are_an_error(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **options: Any) -> Predictions:
        found = compute_predictions(*given, **options)
        return replace(found, logits=found.logits * np.float32("nan"))

    monkeypatch.setattr(robustness, "compute_predictions", broken)
    with pytest.raises(ValueError, match="6 samples have logits that are not finite"):
        compare_models(make_request(num_images=6, corruptions=True))


def test_real_labels_need_imagenets_head(make_request: MakeRequest, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--real_labels: .* no model has a head of ImageNet's thousand classes"):
        compare_models(make_request(real_labels=tmp_path / "real.json"))


def test_real_labels_of_a_thousand_classes() -> None:
    """Three images: predicted 7 (of 7 or 8), predicted 1 (of 2), and one without labels."""
    result: dict[str, Any] = {"conventions": {}, "models": [{"name": "a"}, {"name": "b"}]}
    seen = SimpleNamespace(indices=np.array([3, 5, 9]))
    of_1000: Any = SimpleNamespace(predictions=seen, imagenet_classes=np.array([7, 1, 4]))
    of_few: Any = SimpleNamespace(predictions=seen, imagenet_classes=None)
    add_real_labels(result, [of_1000, of_few], {3: [7, 8], 5: [2], 9: []})
    assert (result["models"][0]["real_top1"], result["models"][0]["real_judged"]) == (0.5, 2)
    assert "real_top1" not in result["models"][1]
