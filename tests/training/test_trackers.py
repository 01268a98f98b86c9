"""TensorBoard, Weights & Biases (offline) and MLflow (a file) get what the history gets, and cannot end a run."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import TensorBoardTracker, WandBTracker

from tests.test_runs import assert_no_pickle
from tests.training.tiny import tiny
from vit.config.run import Tracker
from vit.runs import read_metrics
from vit.tasks.task import NonFinite
from vit.training import trackers
from vit.training.loop import train
from vit.training.session import open_session

pytestmark = pytest.mark.usefixtures("no_figures")


def needs(*modules: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not all(map(find_spec, modules)), reason=f"needs {' and '.join(modules)}")


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_refused(name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trackers._AVAILABLE, name, lambda: False)
    with pytest.raises(ValueError, match=rf"train\.trackers: \['{name}'\] is not valid: {name} cannot be imported"):
        train(tiny(train={"trackers": (name,)}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@needs("tensorboard")
def test_tensorboard_is_written_into_the_run_folder(tmp_path: Path) -> None:
    train(tiny(train={"epochs": 1, "trackers": ("tensorboard",)}), tmp_path)
    assert list(tmp_path.rglob("events.out.tfevents.*"))
    assert_no_pickle(tmp_path)


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client on a store of this test's own."""
    import mlflow

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    return mlflow.MlflowClient()


@needs("mlflow")
@pytest.mark.filterwarnings("default")  # MLflow's, about itself
def test_a_continued_run_goes_on_in_the_same_mlflow_run(tmp_path: Path, mlflow_store: Any) -> None:
    run = tmp_path / "run"
    train(tiny(train={"epochs": 1, "log_every_steps": 1, "trackers": ("mlflow",)}), run)
    summary = train(tiny(train={"epochs": 2, "log_every_steps": 1, "trackers": ("mlflow",)}), run, resume=True)
    (experiment,) = (each for each in mlflow_store.search_experiments() if each.name == trackers.PROJECT)
    (entry,) = mlflow_store.search_runs([experiment.experiment_id])
    assert entry.info.run_name == "run"
    assert entry.info.status == "FINISHED"
    assert entry.data.params["optim.name"] == tiny().optim.name
    for metric in ("train.loss", "val.top1"):
        ours = {line["step"]: line[metric] for line in read_metrics(run) if metric in line}
        theirs = {point.step: point.value for point in mlflow_store.get_metric_history(entry.info.run_id, metric)}
        assert theirs == pytest.approx(ours)
    assert entry.data.metrics["test.top1"] == pytest.approx(summary["test.top1"])


@needs("wandb")
@pytest.mark.filterwarnings("default")
def test_a_continued_run_goes_on_in_the_same_wandb_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = tmp_path / "run"
    train(tiny(train={"epochs": 1, "trackers": ("wandb",)}), run)
    first = json.loads((run / "trackers.json").read_text())
    train(tiny(train={"epochs": 2, "trackers": ("wandb",)}), run, resume=True)
    assert json.loads((run / "trackers.json").read_text()) == first
    written = list((run / "wandb").glob("offline-run-*/*.wandb"))
    assert len(written) == 2
    assert all(first["wandb"] in file.name and file.stat().st_size > 0 for file in written)


class Broken:
    """A tracker whose server has gone."""

    name = "broken"

    def log(self, *_: Any, **__: Any) -> None:
        raise ConnectionError("no route\nto host")

    finish = log


@pytest.mark.usefixtures("no_figures")
def test_a_run_that_fails_closes_its_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next run of the process would find MLflow's entry open, or write into that of Weights & Biases."""
    ended: list[str] = []

    class Watched(Broken):
        def log(self, *_: Any, **__: Any) -> None: ...

        def finish(self) -> None:
            ended.append("run")

    def start(accelerator: Any, *_: Any, **__: Any) -> None:
        accelerator.trackers = [Watched()]

    def fail(*_: Any) -> None:
        raise NonFinite("the loss is not finite")

    monkeypatch.setattr("vit.training.starting.start_trackers", start)
    monkeypatch.setattr("vit.training.loop.validate", fail)
    with pytest.raises(NonFinite):
        train(tiny(), tmp_path / "run")
    assert ended == ["run"]


def test_a_tracker_that_fails_is_left_out_and_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = open_session(tiny(), tmp_path)
    session.accelerator.trackers = [Broken()]
    for step in (3, 4):
        trackers.log_to_trackers(session.accelerator, {"train.loss": 1.0}, step)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train.trackers: broken failed at step 3 and gets no more lines")
    assert "no route to host" in line
    assert session.accelerator.trackers == []


@needs("tensorboard", "wandb")
def test_a_tracker_that_cannot_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether others were started before it or not."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("api_key not configured\n(no-tty)")

    monkeypatch.setattr("wandb.init", refuse)
    wanted: tuple[Tracker, ...]
    for wanted in (("tensorboard", "wandb"), ("wandb", "tensorboard")):
        line = r"could not be started \(RuntimeError: api_key not configured \(no-tty\)\)"
        with pytest.raises(ValueError, match=line):
            train(tiny(train={"trackers": wanted}), tmp_path / "run")


def test_a_tracker_that_cannot_be_closed_does_not_spoil_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = open_session(tiny(), tmp_path)
    session.accelerator.trackers = [Broken()]
    trackers.end_trackers(session.accelerator)
    assert "broken could not be closed (ConnectionError: no route to host)" in capsys.readouterr().err
    assert session.accelerator.trackers == []


@needs("tensorboard", "wandb")
@pytest.mark.filterwarnings("default")
def test_a_tracker_that_is_added_gets_the_settings_and_one_that_is_left_out_keeps_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    stored: list[str] = []
    for kind in (TensorBoardTracker, WandBTracker):
        own = kind.store_init_configuration
        monkeypatch.setattr(kind, "store_init_configuration", lambda s, v, own=own: stored.append(s.name) or own(s, v))
    run = tmp_path / "run"
    entries = []
    plan: tuple[tuple[Tracker, ...], ...] = (("wandb",), ("tensorboard",), ("tensorboard", "wandb"))
    for epochs, wanted in enumerate(plan, 1):
        train(tiny(train={"epochs": epochs, "trackers": wanted}), run, resume=epochs > 1)
        entries.append(json.loads((run / "trackers.json").read_text()))
    assert [each["wandb"] for each in entries] == [entries[0]["wandb"]] * 3
    assert stored == ["wandb", "tensorboard"]
