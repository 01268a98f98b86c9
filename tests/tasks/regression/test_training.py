"""A regression run from its first step to its pictures, on thirteen points."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.test_runs import assert_no_pickle
from tests.training.test_loop import at_step
from tests.training.tiny import assert_same_bits, last, timeless
from vit.attention.kernel_regression import NadarayaWatson
from vit.cli import main
from vit.config import OptimConfig, TrainConfig
from vit.config.validation import make_settings
from vit.engine import make_accelerator
from vit.hub import open_model
from vit.runs import read_metrics
from vit.settings import dump_run_config
from vit.tasks.regression.config import CurveConfig, KernelConfig, RegressionRun
from vit.tasks.regression.curve import even_points, open_curve, true_curve
from vit.tasks.regression.metrics import leave_one_out_error, mean_squared_error
from vit.tasks.regression.model import load_regressor
from vit.tasks.regression.training import KernelRegression, snapshot_epochs
from vit.tasks.task import EvalRequest, NonFinite
from vit.trained_runs import evaluate_checkpoint
from vit.training.interruption import Stopped
from vit.training.loop import train
from vit.training.plan import make_plan

SGD = OptimConfig(name="sgd", lr=0.5, momentum=0.0, weight_decay=0.0, schedule="constant", clip_norm=None)
SMALL = RegressionRun(
    data=CurveConfig(train_points=13, val_points=11, test_points=17, passes=3, eval_batch_size=5),
    optim=SGD,
    train=TrainConfig(epochs=4, precision="fp32", log_every_steps=1),
    device="cpu",
)


def changed(**sections: Any) -> RegressionRun:
    parts = {
        name: replace(getattr(SMALL, name), **value) if isinstance(value, dict) else value
        for name, value in sections.items()
    }
    return replace(SMALL, **parts)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.tasks.regression.report.draw_run", lambda *_: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With its figures."""
    folder = tmp_path_factory.mktemp("runs") / "curve"
    train(SMALL, folder)
    assert_no_pickle(folder)
    return folder


def kernels(config: RegressionRun, *widths: float | torch.Tensor) -> list[NadarayaWatson]:
    points, _ = open_curve(config.data)
    return [NadarayaWatson(points.x, points.y, w) for w in widths]


def test_losses_are_squared_errors_of_estimates_from_the_other_points() -> None:
    task = KernelRegression(SMALL, make_accelerator("cpu", "fp32"))
    (batch,) = next(task.train_loader.epoch(0)).batches
    with torch.no_grad():
        losses, hits = task.losses(task.model, batch, 0)
    for index in (0, 5, 12):
        others = [other for other in range(13) if other != index]
        alone = NadarayaWatson(task.train.x[others], task.train.y[others])
        error = alone(task.train.x[index : index + 1])[0] - task.train.y[index]
        assert float(losses[index]) == pytest.approx(float(error) ** 2, rel=1e-4)
    assert not task.info.has_accuracy
    assert hits.tolist() == [0] * 13
    assert task.sample_name(0) == f"x = {float(task.train.x[0]):.3f}"


def test_a_step_is_gradient_descent_on_the_mean_by_hand(run: Path) -> None:
    """All of a run's steps, done again without the loop."""
    points, _ = open_curve(SMALL.data)
    widths = torch.ones(13, requires_grad=True)
    for _ in range(12):
        scores = -0.5 * ((points.x[:, None] - points.x) * widths) ** 2
        weights = scores.masked_fill(torch.eye(13, dtype=torch.bool), float("-inf")).softmax(dim=1)
        (gradient,) = torch.autograd.grad((weights @ points.y - points.y).square().mean(), widths)
        widths = (widths - 0.5 * gradient).detach().requires_grad_()
    torch.testing.assert_close(last(run).tensors["model"]["kernel.widths"], widths.detach())


def test_the_history_is_of_points_and_has_no_accuracy(run: Path) -> None:
    history = read_metrics(run)
    logged = [record for record in history if "train.loss" in record]
    assert [record["points_seen"] for record in logged] == [13 * step for step in range(1, 13)]
    (first,) = kernels(SMALL, 1.0)
    assert logged[0]["train.loss"] == pytest.approx(leave_one_out_error(first, 5), rel=1e-5)
    assert not any("accuracy" in key for record in history for key in record)
    validated = [record["val.mse"] for record in history if "val.mse" in record]
    widths = last(run).tensors["model"]["kernel.widths"]
    _, val = open_curve(SMALL.data)
    assert len(validated) == 4
    (learned,) = kernels(SMALL, widths)
    assert validated[-1] == pytest.approx(mean_squared_error(learned, val, 5))


def test_the_summary_compares_the_learned_kernel_with_the_fixed_one(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    best = min((record for record in read_metrics(run) if "val.mse" in record), key=lambda record: record["val.mse"])
    model = load_regressor(run)
    fixed, test = kernels(SMALL, 1.0)[0], even_points(17)
    with torch.no_grad():
        own = model(fixed.keys)
    expected = {
        "model": "nadaraya_watson",
        "dataset": "curve",
        "params": 13,
        "val.mse": best["val.mse"],
        "best.step": best["step"],
        "test.mse": mean_squared_error(model.kernel, test, 5),
        "train.mse": float((fixed.values - own).square().mean()),
        "train.mse_leave_one_out": leave_one_out_error(model.kernel, 5),
        "fixed.test.mse": mean_squared_error(fixed, test, 5),
        "fixed.train.mse_leave_one_out": leave_one_out_error(fixed, 5),
        "widths.mean": float(model.kernel.widths.detach().mean()),
        "noise_variance": 0.25,
        "test.n_seen": 17,
        "test.n_total": 17,
    }
    assert {name: summary[name] for name in expected} == {
        name: pytest.approx(value, rel=1e-5) if isinstance(value, float) else value for name, value in expected.items()
    }
    assert summary["train.mse"] < summary["train.mse_leave_one_out"] < summary["fixed.train.mse_leave_one_out"]


@pytest.mark.usefixtures("no_figures")
def test_training_narrows_kernels_and_lowers_the_error_and_the_gap_opens(tmp_path: Path) -> None:
    """Row 3, on fewer points and steps than its recipe."""
    data = {"train_points": 60, "passes": 100, "test_points": 200, "val_points": 200}
    summary = train(changed(data=data, train={"epochs": 3}), tmp_path / "run")
    assert summary["widths.mean"] > 1.3
    assert summary["test.mse"] < 0.85 * summary["fixed.test.mse"]
    gaps = [summary[f"{name}test.mse"] + 0.25 - summary[f"{name}train.mse"] for name in ("", "fixed.")]
    assert gaps[0] > gaps[1] > 0


def test_the_pictures_have_their_numbers(run: Path) -> None:
    figures = run / "figures"
    names = ("estimates", "wiggles", "kernels", "weights", "errors")
    assert {path.name for path in figures.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("png", "json")}
    for name in names:
        with Image.open(figures / f"{name}.png") as picture:
            assert min(picture.size) > 400
        assert f"figures/{name}.png" in (run / "README.md").read_text()
    numbers = {name: json.loads((figures / f"{name}.json").read_text()) for name in names}
    assert all(entry["conventions"] for entry in numbers.values())
    shown = numbers["estimates"]["estimates"]
    assert list(shown) == ["0", "1", "2", "3", "4"]
    (fixed,), test = kernels(SMALL, 1.0), even_points(17)
    assert shown["0"] == pytest.approx(fixed(test.x).tolist(), rel=1e-5)
    assert numbers["estimates"]["test.mse"]["0"] == pytest.approx(mean_squared_error(fixed, test, 5))
    model = load_regressor(run)
    clean = NadarayaWatson(fixed.keys, true_curve(fixed.keys))(test.x)
    torch.testing.assert_close(torch.tensor(numbers["wiggles"]["parts"]["fixed"]), fixed(test.x) - clean)
    assert numbers["kernels"]["widths"] == pytest.approx(model.kernel.widths.tolist())
    assert [sum(row) for row in numbers["weights"]["weights"]["fixed kernel, w = 1"]] == pytest.approx(
        [1] * 17, abs=1e-4
    )
    lines = numbers["errors"]["lines"]
    assert lines["train"][0] == [0, 3, 6, 9, 12]
    assert lines["leave_one_out"][1][0] == pytest.approx(leave_one_out_error(fixed, 5))
    stored = json.loads((run / "predictions" / "test.json").read_text())
    assert stored["estimate"] == pytest.approx(model(test.x).tolist(), rel=1e-5)


def test_the_pictures_are_of_the_chosen_widths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an average of the widths was kept, that is what was chosen."""
    drawn: list[Any] = []
    monkeypatch.setattr("vit.tasks.regression.report.draw_run", lambda *args: drawn.extend(args[2:4]))
    summary = train(changed(train={"ema_decay": 0.9, "epochs": 2}), tmp_path / "run")
    found, best_epoch = drawn
    assert best_epoch == summary["best.step"] // 3
    assert found[best_epoch].metrics["test.mse"] == summary["test.mse"]
    assert found[2].metrics["test.mse"] != found[1].metrics["test.mse"]


@pytest.mark.parametrize("stopped", [False, True])
def test_where_an_average_is_kept_all_pictures_are_of_it(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was stopped at the last step of an epoch validates it when it continues."""
    saved: dict[str, Any] = {}
    monkeypatch.setattr(
        "vit.tasks.regression.report.save_figure", lambda _, path, numbers: saved.update({path.stem: numbers})
    )
    validated: list[list[float]] = []
    validate = KernelRegression.validate

    def observed(task: KernelRegression, model: Any) -> dict[str, float]:
        validated.append(task.kernel_of(model).widths.tolist())
        return validate(task, model)

    monkeypatch.setattr(KernelRegression, "validate", observed)
    config = changed(train={"ema_decay": 0.9, "epochs": 3})
    if stopped:
        with monkeypatch.context() as patch:
            at_step(patch, 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
            with pytest.raises(Stopped):
                train(config, tmp_path)
        assert validated == []
    train(config, tmp_path, resume=stopped)
    assert len(validated) == 6
    averages = [torch.tensor(widths) for widths in validated[1::2]]
    test, expected = even_points(17), kernels(config, 1.0, *averages)
    for epoch, kernel in enumerate(expected):
        torch.testing.assert_close(saved["estimates"]["estimates"][epoch], kernel(test.x))
    lines = saved["errors"]["lines"]
    assert lines["test"][1] == pytest.approx([mean_squared_error(kernel, test, 5) + 0.25 for kernel in expected])
    history = [record for record in read_metrics(tmp_path) if "ema.val.mse" in record]
    assert lines["val"][1] == [record["ema.val.mse"] for record in history] != [r["val.mse"] for r in history]
    assert "ema.val.mse" in saved["errors"]["conventions"]


def test_a_resumed_run_has_the_same_bits_and_the_same_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[float]] = []
    monkeypatch.setattr(
        "vit.tasks.regression.report.draw_run",
        lambda *args: drawn.append([found.metrics["test.mse"] for found in args[2].values()]),
    )
    whole = train(SMALL, tmp_path / "whole")

    def fail() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        at_step(patch, 8, fail)
        with pytest.raises(KeyboardInterrupt):
            train(SMALL, tmp_path / "broken")
    resumed = train(SMALL, tmp_path / "broken", resume=True)
    assert_same_bits(tmp_path / "whole", tmp_path / "broken")
    speed = "points_per_second"
    assert {**timeless(whole), speed: 0} == {**timeless(resumed), speed: 0}
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 5


@pytest.mark.usefixtures("no_figures")
def test_micro_batches_and_chunks_change_no_width(tmp_path: Path) -> None:
    ends = []
    for name, sections in {"whole": {}, "cut": {"train": {"accumulation_steps": 5}}}.items():
        train(changed(**sections), tmp_path / name)
        ends.append(last(tmp_path / name).tensors["model"]["kernel.widths"])
    torch.testing.assert_close(*ends)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("sections", "differs"),
    [
        ({"model": {"initial_width": 2.0}}, "test.mse"),
        ({"data": {"train_points": 14}}, "test.mse"),
        ({"data": {"val_points": 12}}, "val.mse"),
        ({"data": {"test_points": 19}}, "test.mse"),
        ({"data": {"noise": 0.0}}, "test.mse"),
        ({"data": {"points_seed": 1}}, "test.mse"),
        ({"data": {"passes": 2}}, "test.mse"),
        ({"train": {"ema_decay": 0.9}}, "test.mse"),
    ],
)
def test_every_setting_moves_something(sections: dict[str, Any], differs: str, run: Path, tmp_path: Path) -> None:
    before = json.loads((run / "summary.json").read_text())
    assert train(changed(**sections), tmp_path / "run")[differs] != before[differs]


def test_answers_that_are_no_numbers_stop_the_run() -> None:
    task = KernelRegression(SMALL, make_accelerator("cpu", "fp32"))
    task.model.kernel.widths.data.fill_(math.nan)
    with pytest.raises(NonFinite, match="validation points are not finite"):
        task.validate(task.model)


def test_snapshots_stand_ever_farther_apart() -> None:
    assert snapshot_epochs(1) == {0, 1}
    assert snapshot_epochs(4) == {0, 1, 2, 3, 4}
    epochs = sorted(snapshot_epochs(1000))
    assert epochs[:4] == [0, 1, 2, 3]
    assert epochs[-1] == 1000
    assert len(epochs) <= 25


def test_a_plan_says_what_will_be_done() -> None:
    text = make_plan(SMALL).text()
    assert "13 to train on in [0, 20], noise 0.5; 11 to validate, 17 to test" in text
    assert "13, of which 13 are trained" in text
    assert "12 (4 epochs of 3)" in text


@pytest.mark.usefixtures("no_figures")
def test_the_command_trains_and_evaluates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(dump_run_config(SMALL, {}))
    assert main(["train", "--config", str(recipe), "--output_dir", str(run)]) == 0
    summary = json.loads((run / "summary.json").read_text())
    said = capsys.readouterr().out
    assert f"test error {summary['test.mse']:.4f}, of the fixed kernel {summary['fixed.test.mse']:.4f}" in said
    assert main(["eval", str(run)]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert {name: summary[name] for name in metrics} == metrics
    assert json.loads((run / "predictions" / "curve_17_best_auto.json").read_text()).items() > metrics.items()
    for words, complaint in (
        (["--image_size", "8"], "--image_size: it has no effect here; the checkpoint is a kernel regression's"),
        (["--transfer"], "--transfer: it has no effect here"),
        (["--data.noise", "1"], "--data.noise: it has no effect here"),
    ):
        assert main(["eval", str(run), *words]) == 2
        assert complaint in capsys.readouterr().err


def test_a_checkpoint_is_evaluated_at_other_places(run: Path, tmp_path: Path) -> None:
    request = EvalRequest(run, select="last", output_dir=tmp_path)
    metrics = evaluate_checkpoint(request, ["--data.test_points", "5"])
    model = load_regressor(run, "last")
    assert metrics["test.n_seen"] == 5
    assert metrics["test.mse"] == pytest.approx(mean_squared_error(model.kernel, even_points(5), 5))


@pytest.mark.parametrize("change", [{"test.mse": 9.0}, {"step": 1}])
def test_an_earlier_evaluation_with_other_numbers_is_kept(
    change: dict[str, float], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", str(run), "--output_dir", str(tmp_path)]
    assert main(words) == 0
    assert main(words) == 0
    (record,) = tmp_path.iterdir()
    before = json.loads(record.read_text()) | change
    record.write_text(json.dumps(before))
    capsys.readouterr()
    assert main(words) == 0
    assert json.loads((tmp_path / "earlier-1" / record.name).read_text()) == before
    assert json.loads(record.read_text())["test.mse"] != 9.0
    assert f"note: an earlier evaluation gave other numbers; it is kept in {tmp_path}" in capsys.readouterr().err


def test_a_regression_is_no_classifier(run: Path) -> None:
    with pytest.raises(ValueError, match="it holds a model of kind 'kernel_regression'"):
        open_model(run)


def test_estimates_are_not_rounded_unless_that_is_asked_for() -> None:
    assert make_settings(RegressionRun, {"train.epochs": 3}).train.precision == "fp32"
    assert make_settings(RegressionRun, {"train.precision": "bf16"}).train.precision == "bf16"


def test_the_recipe_is_valid() -> None:
    from vit.settings import resolve_run

    config = resolve_run(Path("configs/kernel_regression.yaml")).config
    assert isinstance(config, RegressionRun)
    assert config.model == KernelConfig(initial_width=1.0)
