"""The loop: it learns, leaves what the run folder promises, and continues bit for bit after any stop."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.data.image_folders import make_folder, truncate
from tests.processes import in_processes
from tests.test_runs import assert_no_pickle
from tests.training.tiny import RANDOM, assert_same_bits, last, tiny
from vit.config import DataConfig
from vit.data.images import open_training
from vit.data.order import epoch_order
from vit.evaluation.evaluate import predict_all
from vit.runs import (
    DamagedCheckpoint,
    find_checkpoint,
    last_checkpoint,
    read_checkpoint,
    read_metrics,
    verify_checkpoint,
    write_checkpoint,
)
from vit.settings import read_run_config
from vit.tasks.classification import report
from vit.tasks.classification import training as classification_module
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.classification.report import ClassificationReport
from vit.tasks.classification.training import Classification
from vit.tasks.task import NonFinite
from vit.training import loop
from vit.training.checkpoints import save_session
from vit.training.interruption import Stopped
from vit.training.loop import StepResult, train
from vit.training.session import Session, open_session
from vit.training.validation import validate


class Killed(BaseException):
    """Stands for a process that is gone: nothing may catch it."""


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> None:
    """Do something when step `number` has been computed and nothing of it is saved or logged."""
    own = loop.steps

    def wrapped(session: Session) -> Iterator[StepResult]:
        for step in own(session):
            if session.progress.step == number:
                act()
            yield step

    monkeypatch.setattr(loop, "steps", wrapped)


def kill() -> None:
    raise Killed


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ClassificationRun], Path]:
    """The folder of a run with these settings that nothing interrupted; each is trained once."""
    made: dict[ClassificationRun, Path] = {}

    def run_of(config: ClassificationRun) -> Path:
        if config not in made:
            made[config] = tmp_path_factory.mktemp("unbroken") / "run"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
                train(config, made[config])
        return made[config]

    return run_of


# ------------------------------------------------------------------ a whole run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], ClassificationRun]:
    run = tmp_path_factory.mktemp("runs") / "whole"
    config = tiny(
        data={"fake_images": 96},
        optim={"lr": 5e-3, "name": "muon"},
        train={"epochs": 12, "ema_decay": 0.9, "log_every_steps": 4, "evaluate_every_epochs": 5},
    )
    return run, train(config, run, origins={"optim.lr": "command line"}), config


def test_it_learns(finished: tuple[Path, dict[str, Any], ClassificationRun]) -> None:
    run, summary, _ = finished
    steps = [record for record in read_metrics(run) if "train.loss" in record]
    assert steps[0]["train.loss"] > 0.9
    assert steps[-1]["train.loss"] < 0.2
    assert steps[-1]["train.accuracy"] > 0.95
    seconds = [line["seconds"] for line in read_metrics(run)]
    assert seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(summary["seconds"], abs=0.01)
    assert summary["test.top1"] > 0.9


def test_an_epoch_of_few_steps_has_a_line_too(tmp_path: Path) -> None:
    """At its last step, where `log_every_steps` falls into none of its own; the sums then begin anew."""
    train(tiny(train={"epochs": 4, "log_every_steps": 5}), tmp_path)
    lines = [record for record in read_metrics(tmp_path) if "train.loss" in record]
    assert [line["step"] for line in lines] == [3, 5, 9, 10]
    assert all(line["lr"] >= 0 for line in lines)


def test_the_run_folder_holds_what_it_promises(finished: tuple[Path, dict[str, Any], ClassificationRun]) -> None:
    run, summary, config = finished
    assert {path.name for path in run.iterdir()} == {
        *("config.yaml", "metrics.jsonl", "summary.json", "README.md"),
        *("checkpoints", "figures", "predictions"),
    }
    assert read_run_config(run / "config.yaml")[0] == config
    assert read_run_config(run / "config.yaml")[1]["optim.lr"] == "command line"
    assert json.loads((run / "summary.json").read_text()) == json.loads(json.dumps(summary))
    for name in ("learning_curves", "confusion_matrix"):
        assert (run / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "conventions" in json.loads((run / "figures" / f"{name}.json").read_text())
    assert list((run / "predictions").glob("*.npz"))
    assert_no_pickle(run)


def test_the_summary_is_flat_and_complete(finished: tuple[Path, dict[str, Any], ClassificationRun]) -> None:
    _, summary, _ = finished
    promised = {
        *(
            "model",
            "dataset",
            "params",
            "gmacs",
            "train.gmacs",
            "seconds",
            "images_per_second",
            "seed",
            "versions",
            "commit",
            "machine",
        ),
        *("val.top1", "test.top1", "test.n_seen", "test.n_total", "train.n_broken"),
    }
    assert promised <= summary.keys()
    assert summary["test.n_seen"] == summary["test.n_total"] == 24
    assert 0 <= summary["test.top1"] <= 1
    assert summary["weights"] == "ema"
    assert summary["images_seen"] == 12 * 87
    assert summary["steps"] == 12 * 6
    assert [key for key, value in summary.items() if isinstance(value, (dict, list))] == ["versions"]


def test_the_model_card_gives_the_measured_numbers(finished: tuple[Path, dict[str, Any], ClassificationRun]) -> None:
    run, summary, _ = finished
    card = (run / "README.md").read_text()
    assert f"{summary['test.top1']:.2%} of 24 images" in card
    assert f"{summary['params']:,}" in card
    assert "pattern 0" in card
    assert f"    vit eval {run}\n" in card


def test_validation_is_on_time_and_names_the_best(finished: tuple[Path, dict[str, Any], ClassificationRun]) -> None:
    run, summary, _ = finished
    validated = [record for record in read_metrics(run) if "val.top1" in record]
    assert [record["epoch"] for record in validated] == [5, 10, 12]
    best = max(validated, key=lambda record: record["ema.val.top1"])
    assert summary["val.top1"] == best["ema.val.top1"]
    equals = [record["step"] for record in validated if record["ema.val.top1"] == best["ema.val.top1"]]
    assert summary["best.step"] == equals[-1]


@pytest.mark.usefixtures("no_figures")
def test_of_epochs_that_validate_equally_the_last_is_kept(tmp_path: Path) -> None:
    config = tiny(optim={"lr": 1e-30, "min_lr": 0.0}, train={"epochs": 3})
    summary = train(config, tmp_path)
    validated = [record["val.top1"] for record in read_metrics(tmp_path) if "val.top1" in record]
    assert len(validated) == 3
    assert set(validated) == {summary["val.top1"]}
    assert summary["best.step"] == summary["steps"]


def test_a_second_run_into_the_folder_is_refused(finished: tuple[Path, dict[str, Any], ClassificationRun]) -> None:
    run, _, config = finished
    before = (run / "config.yaml").read_text()
    with pytest.raises(ValueError, match=r"output_dir: .* holds a run already; continue it with --resume"):
        train(tiny(config, seed=5), run)
    assert (run / "config.yaml").read_text() == before


@pytest.mark.usefixtures("no_figures")
def test_a_finished_run_that_is_resumed_only_finishes(
    finished: tuple[Path, dict[str, Any], ClassificationRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, summary, config = finished
    monkeypatch.setattr(ClassificationReport, "test", lambda *_: pytest.fail("the test set was evaluated again"))
    again = train(config, run, resume=True)
    assert {key: again[key] for key in ("steps", "test.top1", "best.step")} == {
        key: summary[key] for key in ("steps", "test.top1", "best.step")
    }


CHANGES: dict[str, dict[str, Any]] = {
    "optim.lr": {"optim": {"lr": 1e-4}},
    "seed": {"seed": 9},
    "model.depth": {"model": {"depth": 1}},
    "data.batch_size": {"data": {"batch_size": 32}},
    "train.epochs": {"train": {"epochs": 11}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_settings_are_refused_at_resume(
    name: str, finished: tuple[Path, dict[str, Any], ClassificationRun]
) -> None:
    run, _, config = finished
    before = (run / "config.yaml").read_text()
    reason = "has been trained for 12 of 12 epochs" if name == "train.epochs" else "was started with"
    with pytest.raises(ValueError, match=rf"^{name}: .* {reason}"):
        train(tiny(config, **CHANGES[name]), run, resume=True)
    assert (run / "config.yaml").read_text() == before, "a refused resume must not change what the run says of itself"


def test_another_precision_is_refused_at_resume(finished: tuple[Path, dict[str, Any], ClassificationRun]) -> None:
    run, _, config = finished
    with pytest.raises(ValueError, match=r"^train\.precision: .* continue in bf16; the run was started in fp32"):
        train(tiny(config, train={"precision": "bf16"}), run, resume=True)


RESNET = {"name": "resnet18_cifar", "width": 4, "patch_size": None, "depth": None, "num_heads": None}


@pytest.mark.usefixtures("no_figures")
def test_micro_batches_are_fixed_at_resume_where_batchnorm_sees_them(tmp_path: Path) -> None:
    config = tiny(model=RESNET, train={"epochs": 1})
    train(config, tmp_path)
    rule = r"^train\.accumulation_steps: 2 is not valid: the run was started with 1, and the model's BatchNorm"
    with pytest.raises(ValueError, match=rule):
        train(tiny(config, train={"accumulation_steps": 2}), tmp_path, resume=True)
    newest = last_checkpoint(tmp_path)
    assert newest is not None
    checkpoint = read_checkpoint(newest)
    progress = checkpoint.state["progress"] | {"step": 99}
    write_checkpoint(tmp_path, 99, replace(checkpoint, state=checkpoint.state | {"processes": 2, "progress": progress}))
    with pytest.raises(ValueError, match=r"^accelerate: processes: 1 is not valid: the run was started with 2, and"):
        train(config, tmp_path, resume=True)


@pytest.mark.usefixtures("no_figures")
def test_micro_batches_are_free_at_resume_without_batchnorm(tmp_path: Path) -> None:
    config = tiny(train={"epochs": 1})
    before = train(config, tmp_path)
    after = train(tiny(config, train={"accumulation_steps": 2}), tmp_path, resume=True)
    assert after["test.top1"] == before["test.top1"]


@pytest.mark.usefixtures("no_figures")
def test_a_run_continues_with_other_micro_batches_and_processes(tmp_path: Path) -> None:
    """Of two epochs, the second one: to rounding the run that was never stopped."""
    config = tiny(**RANDOM, train={"epochs": 2, "save_every_epochs": 1, "evaluate_every_epochs": 1, "ema_decay": 0.9})
    train(config, tmp_path / "whole")
    wanted = last(tmp_path / "whole").tensors
    for name in ("micro-batches", "processes"):
        run = tmp_path / name
        shutil.copytree(tmp_path / "whole", run)
        (run / "summary.json").unlink()
        newest = last_checkpoint(run)
        assert newest is not None
        shutil.rmtree(newest)
        assert last_checkpoint(run) is not None, "the first epoch's is left"
        if name == "processes":
            in_processes(2, train_in, config, run)
        else:
            train(tiny(config, train={"accumulation_steps": 2}), run, resume=True)
        for group, tensors in last(run).tensors.items():
            for key, tensor in tensors.items():
                torch.testing.assert_close(tensor, wanted[group][key], rtol=1e-2, atol=1e-4, msg=f"{name}: {key}")


def train_in(config: ClassificationRun, run: Path) -> dict[str, Any]:
    report.draw_run = lambda *_: None  # in a process of its own
    return train(config, run, resume=True)


@pytest.mark.usefixtures("no_figures")
def test_the_test_set_is_evaluated_at_the_end_only_and_once_where_one_checkpoint_is_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, steps = ClassificationReport.test, list[int]()

    def test(self: ClassificationReport, *given: Any) -> Any:
        steps.append(last(tmp_path).state["progress"]["step"])
        return whole(self, *given)

    monkeypatch.setattr(ClassificationReport, "test", test)
    summary = train(tiny(), tmp_path)
    assert set(steps) == {summary["steps"]}
    assert len(steps) == (1 if summary["best.step"] == summary["steps"] else 2)


def test_other_data_are_refused_at_resume(
    finished: tuple[Path, dict[str, Any], ClassificationRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _, config = finished
    monkeypatch.setattr("vit.tasks.images.fingerprint", lambda _: "other")
    with pytest.raises(ValueError, match=r"data\.root: the training or validation data are not those that"):
        train(config, run, resume=True)


# ------------------------------------------------------------------ the same bits


@pytest.mark.usefixtures("no_figures")
def test_two_runs_of_one_seed_are_the_same_bits_and_another_seed_is_not(
    tmp_path: Path, unbroken: Callable[[ClassificationRun], Path]
) -> None:
    config = tiny(**RANDOM, train={"ema_decay": 0.9})
    unbroken(config)
    torch.rand(3)
    train(config, tmp_path / "again")
    assert_same_bits(unbroken(config), tmp_path / "again")
    with pytest.raises(AssertionError):
        assert_same_bits(unbroken(config), unbroken(tiny(config, seed=1)))


OPTIMIZERS = {
    "adamw": {"name": "adamw"},
    "sgd": {"name": "sgd"},
    "sgd without momentum": {"name": "sgd", "momentum": 0.0},
    "lamb": {"name": "lamb", "layer_decay": 0.7},
    "muon": {"name": "muon"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.usefixtures("no_figures")
def test_a_run_killed_in_mid_epoch_ends_with_the_same_bits(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbroken: Callable[[ClassificationRun], Path],
) -> None:
    config = tiny(
        **RANDOM, optim=OPTIMIZERS[name], train={"ema_decay": 0.9, "save_every_steps": 2, "log_every_steps": 4}
    )
    with monkeypatch.context() as patch:
        at_step(patch, 6, kill)
        with pytest.raises(Killed):
            train(config, tmp_path / "broken")
    assert last(tmp_path / "broken").state["progress"]["step_in_epoch"] == 1
    train(config, tmp_path / "broken", resume=True)
    assert_same_bits(unbroken(config), tmp_path / "broken")


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.usefixtures("no_figures")
def test_a_run_killed_before_and_around_its_first_save(
    step: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbroken: Callable[[ClassificationRun], Path],
) -> None:
    config = tiny(train={"epochs": 1, "save_every_steps": 2})
    with monkeypatch.context() as patch:
        at_step(patch, step, kill)
        with pytest.raises(Killed):
            train(config, tmp_path / "broken")
    train(config, tmp_path / "broken", resume=True)
    assert_same_bits(unbroken(config), tmp_path / "broken")


@pytest.mark.usefixtures("no_figures")
def test_epochs_that_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = list[int]()

    def save(session: Session) -> None:
        saved.append(session.progress.epoch)
        save_session(session)

    monkeypatch.setattr(loop, "save_session", save)
    train(tiny(train={"epochs": 8, "save_every_epochs": 3, "evaluate_every_epochs": 5}), tmp_path)
    assert saved == [3, 5, 6, 8]
    saved.clear()
    every = {"save_every_epochs": 4, "evaluate_every_epochs": 4, "save_every_steps": 2}
    train(tiny(train={"epochs": 4, **every}), tmp_path / "steps")
    assert saved == [0, 1, 2, 2, 3, 4], "after steps 2, 4, 6, the last of its epoch, 8, 10 and 12"


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("epoch", [2, 4])
def test_a_run_killed_in_an_epoch_after_one_that_was_not_saved(
    epoch: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbroken: Callable[[ClassificationRun], Path],
) -> None:
    config = tiny(train={"epochs": 5, "save_every_epochs": 2, "evaluate_every_epochs": 3, "ema_decay": 0.9})
    kill_at(3 * epoch - 1, config, tmp_path / "broken", monkeypatch)
    assert len(read_metrics(tmp_path / "broken")) >= 3 * (epoch - 1)
    train(config, tmp_path / "broken", resume=True)
    assert_same_bits(unbroken(config), tmp_path / "broken")


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_signal_while_an_epoch_is_saved_stops_the_run_there(
    epoch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(session: Session) -> None:
        if session.progress.epoch == epoch:
            signal.raise_signal(signal.SIGTERM)
        save_session(session)

    monkeypatch.setattr(loop, "save_session", save)
    with pytest.raises(Stopped, match=f"after step {3 * epoch};"):
        train(tiny(train={"epochs": 2}), tmp_path)


@pytest.mark.usefixtures("no_figures")
def test_a_run_without_a_checkpoint_yet_may_be_saved_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbroken: Callable[[ClassificationRun], Path]
) -> None:
    """None is lost: by the settings that it was started with there was to be none."""
    settings = {"epochs": 4, "evaluate_every_epochs": 4}
    config = tiny(train={**settings, "save_every_epochs": 4})
    kill_at(8, config, tmp_path / "broken", monkeypatch)
    train(tiny(train={**settings, "save_every_epochs": 2}), tmp_path / "broken", resume=True)
    assert_same_bits(unbroken(config), tmp_path / "broken")


@pytest.mark.usefixtures("no_figures")
def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unbroken: Callable[[ClassificationRun], Path],
) -> None:
    """The run continues from the one before, and the damaged one does not outlive it."""
    config = tiny(train={"epochs": 2, "save_every_steps": 2})
    kill_at(4, config, tmp_path / "broken", monkeypatch)
    folders = sorted((tmp_path / "broken" / "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step-00000002", "step-00000003"]
    (folders[-1] / "model.safetensors").write_bytes(b"cut short")
    train(config, tmp_path / "broken", resume=True)
    assert "step-00000003" in caplog.text
    assert_same_bits(unbroken(config), tmp_path / "broken")
    for folder in (tmp_path / "broken" / "checkpoints").iterdir():
        verify_checkpoint(folder)


@pytest.mark.usefixtures("no_figures")
def test_a_checkpoint_of_another_run_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Though it has the same step and settings, and is whole."""
    config = tiny(train={"epochs": 2})
    for name, seed in (("one", 0), ("other", 1)):
        train(replace(config, seed=seed), tmp_path / name)
    folders = sorted((tmp_path / "one" / "checkpoints").iterdir())
    shutil.rmtree(folders[-1])
    shutil.copytree(tmp_path / "other" / "checkpoints" / folders[-1].name, folders[-1])
    with pytest.raises(DamagedCheckpoint, match="is a checkpoint of another run: no line of its history is in"):
        verify_checkpoint(folders[-1])
    assert find_checkpoint(tmp_path / "one", "last") != folders[-1]
    assert "is a checkpoint of another run" in caplog.text


@pytest.mark.usefixtures("no_figures")
def test_a_history_that_lost_its_beginning_is_restored(tmp_path: Path) -> None:
    """Its lines, if any, are later than the checkpoint, which is not another run's for that."""
    config = tiny(train={"epochs": 2})
    train(config, tmp_path)
    history, folders = tmp_path / "metrics.jsonl", sorted((tmp_path / "checkpoints").iterdir())
    whole = read_metrics(tmp_path)
    shutil.rmtree(folders[-1])
    (tmp_path / "summary.json").unlink()
    first = read_metrics(folders[0])
    history.write_text("".join(json.dumps(line) + "\n" for line in whole if line not in first))
    train(config, tmp_path, resume=True)
    assert read_metrics(tmp_path)[: len(first)] == first


def kill_at(step: int, config: ClassificationRun, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        at_step(patch, step, kill)
        with pytest.raises(Killed):
            train(config, run)


def test_a_run_whose_checkpoints_are_all_damaged_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(train={"epochs": 2, "save_every_steps": 2})
    kill_at(4, config, tmp_path, monkeypatch)
    for folder in (tmp_path / "checkpoints").iterdir():
        (folder / "model.safetensors").write_bytes(b"cut short")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"--resume: every .* is damaged.*step-00000003.*step-00000002"):
        train(config, tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_that_lost_its_checkpoints_within_an_epoch_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(train={"epochs": 2, "save_every_steps": 1})
    kill_at(3, config, tmp_path, monkeypatch)
    shutil.rmtree(tmp_path / "checkpoints")
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="has no checkpoint any more, although it was trained for"):
        train(config, tmp_path, resume=True)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


GREY = (0.5, 0.5, 0.5)


def test_a_test_image_with_a_name_of_any_bytes(tmp_path: Path) -> None:
    root = tmp_path / "images"
    for part, count in (("train", 8), ("test", 2)):
        make_folder(root / part, {"cat": count, "dog": count})
    image = next((root / "test" / "cat").iterdir())
    image.rename(image.with_name(os.fsdecode(b"caf\xe9" + os.fsencode(image.suffix))))
    data = DataConfig(name="imagefolder", root=str(root), batch_size=8, workers=0, mean=GREY, std=GREY)
    assert train(tiny(data=data, train={"epochs": 1}), tmp_path / "run")["test.n_seen"] == 4
    assert b"caf\xe9" in (tmp_path / "run" / "predictions" / "test.csv").read_bytes()


def test_a_run_that_has_no_checkpoint_yet_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_at(3, tiny(), tmp_path, monkeypatch)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    assert before
    with pytest.raises(ValueError, match=r"output_dir: .* holds a run already"):
        train(tiny(), tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.usefixtures("no_figures")
def test_a_run_whose_best_is_damaged_says_which_weights_it_judged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, unbroken: Callable[[ClassificationRun], Path]
) -> None:
    config = tiny(train={"ema_decay": 0.9})
    run = shutil.copytree(unbroken(config), tmp_path / "run")
    folder = run / "checkpoints" / "step-00000006"
    state = json.loads((folder / "state.json").read_text())
    state["best"] = state["progress"]["best"] = {"step": 3, "value": 0.875}
    (folder / "state.json").write_text(json.dumps(state))
    hashes = json.loads((folder / "hashes.json").read_text())
    hashes["state.json"] = hashlib.sha256((folder / "state.json").read_bytes()).hexdigest()
    (folder / "hashes.json").write_text(json.dumps(hashes))
    (run / "summary.json").unlink()  # else nothing is left to judge
    assert train(config, run, resume=True)["val.top1"] == 0.875
    (run / "summary.json").unlink()
    (run / "checkpoints" / "step-00000003" / "ema.safetensors").write_bytes(b"cut short")
    summary = train(config, run, resume=True)
    assert "the best" in caplog.text
    assert "step-00000003" in caplog.text
    assert summary["best.step"] == 6
    assert summary["val.top1"] == next(
        r["ema.val.top1"] for r in read_metrics(run) if "val.top1" in r and r["step"] == 6
    )


@pytest.mark.parametrize(
    ("number", "code", "step", "stops_after"),
    [(signal.SIGTERM, 143, 1, 2), (signal.SIGINT, 130, 3, 3)],
    ids=["SIGTERM in mid-epoch", "SIGINT at an epoch's end"],
)
@pytest.mark.usefixtures("no_figures")
def test_a_signal_saves_and_the_run_continues_with_the_same_bits(
    number: signal.Signals,
    code: int,
    step: int,
    stops_after: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbroken: Callable[[ClassificationRun], Path],
) -> None:
    config = tiny(**RANDOM, train={"ema_decay": 0.9})
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_step(patch, step, lambda: os.kill(os.getpid(), number))
        with pytest.raises(
            Stopped, match=f"by {number.name} after step {stops_after}; continue with --resume"
        ) as stopped:
            train(config, tmp_path / "broken")
    assert stopped.value.exit_code == code
    assert signal.getsignal(number) is before
    assert last(tmp_path / "broken").state["progress"]["step"] == stops_after
    train(config, tmp_path / "broken", resume=True)
    assert_same_bits(unbroken(config), tmp_path / "broken")


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.usefixtures("no_figures")
def test_a_signal_in_an_epochs_last_step_stops_before_its_validation(
    epoch: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbroken: Callable[[ClassificationRun], Path],
) -> None:
    config, validated = tiny(**RANDOM, train={"ema_decay": 0.9}), list[int]()
    whole = loop.steps

    def stopped(session: Session) -> Iterator[loop.StepResult]:
        for step in whole(session):
            yield step._replace(stop_signal=signal.SIGTERM if session.progress.step == 3 * epoch else 0)

    def noting(session: Session) -> dict[str, float]:
        validated.append(session.progress.epoch)
        return validate(session)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "steps", stopped)
        patch.setattr(loop, "validate", noting)
        with pytest.raises(Stopped, match=f"by SIGTERM after step {3 * epoch};"):
            train(config, tmp_path / "broken")
    assert validated == list(range(1, epoch))
    train(config, tmp_path / "broken", resume=True)
    assert_same_bits(unbroken(config), tmp_path / "broken")


@pytest.mark.usefixtures("no_figures")
def test_what_may_change_at_resume_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbroken: Callable[[ClassificationRun], Path],
) -> None:
    config = tiny(**RANDOM)
    with monkeypatch.context() as patch:
        at_step(patch, 4, kill)
        with pytest.raises(Killed):
            train(config, tmp_path / "broken")
    free = tiny(config, data={"cache_gib": 0.0, "eval_batch_size": 4}, train={"save_every_steps": 1})
    train(free, tmp_path / "broken", resume=True)
    assert_same_bits(unbroken(config), tmp_path / "broken")


# ------------------------------------------------------------------ what must not happen


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.usefixtures("no_figures")
def test_a_number_that_is_not_finite_stops_before_the_weights_change(
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    unbroken: Callable[[ClassificationRun], Path],
) -> None:
    config = tiny(train={"save_every_steps": 2, "ema_decay": 0.9})
    compute = Classification.losses
    seen: list[Any] = []

    def poisoned(self: Classification, model: Any, *rest: Any) -> tuple[Tensor, Tensor]:
        losses, correct = compute(self, model, *rest)
        seen.append(model)
        if len(seen) == 5:
            bad = model.head.bias.sum() * 0
            losses = losses + (bad * float("nan") if what == "loss" else _steep(bad))
        return losses, correct

    with monkeypatch.context() as patch:
        patch.setattr(Classification, "losses", poisoned)
        with pytest.raises(NonFinite, match=rf"the {what} is not finite at step 5 \(epoch 2, batch 2 of it") as caught:
            train(config, tmp_path / "broken")
    if what == "loss":
        assert "images fake/train/" in str(caught.value)
    kept = last(tmp_path / "broken")
    assert kept.state["progress"]["step"] == 4
    for name, tensor in seen[-1].state_dict().items():
        assert torch.equal(tensor, kept.tensors["model"][name]), f"{name} changed"
    train(config, tmp_path / "broken", resume=True)
    assert_same_bits(unbroken(config), tmp_path / "broken")


def test_samples_of_any_process_are_named_where_the_loss_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All processes raise and the first to speak is heard, which may not be the one that read them."""
    session = open_session(tiny(), tmp_path)
    step = next(session.task.train_loader.epoch(0))
    monkeypatch.setattr(loop, "gather_object", lambda own: [*own, ", images of another process"])
    with pytest.raises(NonFinite, match="batch 1 of it, images of another process"):
        loop._check_finite(session, step, [torch.tensor(1.0)] * len(step.batches), float("nan"), 1.0)


def test_an_overflow_that_no_scale_of_fp16_explains_ends_the_run(tmp_path: Path) -> None:
    session = open_session(tiny(), tmp_path)
    step = next(session.task.train_loader.epoch(0))
    losses = [torch.tensor(1.0)] * len(step.batches)
    for scale in (2.0**16, loop.LEAST_SCALE):  # the scaler skips such a step
        session.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        loop._check_finite(session, step, losses, 1.0, float("inf"))
    session.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=loop.LEAST_SCALE / 2)
    with pytest.raises(NonFinite, match="the gradient is not finite at step 1"):
        loop._check_finite(session, step, losses, 1.0, float("inf"))


def _steep(zero: Tensor) -> Tensor:
    """0, with an infinite slope."""
    return zero.abs().sqrt()


@pytest.mark.usefixtures("no_figures")
def test_answers_that_are_not_finite_are_the_runs_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = predict_all

    def poisoned(*arguments: Any, **named: Any) -> Any:
        predictions = answer(*arguments, **named)
        predictions.logits[1] = float("inf")
        return predictions

    monkeypatch.setattr(classification_module, "predict_all", poisoned)
    with pytest.raises(NonFinite, match=r"validation images are not finite after step 3 \(epoch 1\)"):
        train(tiny(), tmp_path)


def folder_config(root: Path, **data: Any) -> ClassificationRun:
    settings = {"name": "imagefolder", "root": str(root), "fake_images": 512, "fake_classes": 10, "batch_size": 8}
    return tiny(data=settings | data, train={"epochs": 1})


@pytest.mark.parametrize("cache_gib", [2.0, 0.0])
@pytest.mark.usefixtures("no_figures")
def test_broken_training_images_are_in_the_summary(cache_gib: float, tmp_path: Path) -> None:
    for part, count in (("train", 12), ("val", 2)):
        make_folder(tmp_path / "data" / part, {"a": count, "b": count})
    config = folder_config(tmp_path / "data", on_broken_image="skip", cache_gib=cache_gib)
    split, _ = open_training(config.data)
    for index in split.indices[:3].tolist():
        truncate(tmp_path / "data" / split.source.name(index))
    assert train(config, tmp_path / "run")["train.n_broken"] == 3
    assert train(config, tmp_path / "run", resume=True)["train.n_broken"] == 3, "also of what was trained before"


@pytest.mark.usefixtures("no_figures")
def test_a_broken_image_before_the_interruption_is_still_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part, count in (("train", 12), ("val", 2)):
        make_folder(tmp_path / "data" / part, {"a": count, "b": count})
    config = folder_config(tmp_path / "data", on_broken_image="skip", cache_gib=0.0)
    config = tiny(config, train={"save_every_steps": 1})
    split, _ = open_training(config.data)
    first = epoch_order(config.seed, 0, len(split), 1, len(split))[0]
    truncate(tmp_path / "data" / split.source.name(int(split.indices[first])))
    kill_at(2, config, tmp_path / "run", monkeypatch)
    assert last(tmp_path / "run").state["progress"]["step"] == 1
    assert train(config, tmp_path / "run", resume=True)["train.n_broken"] == 1


@pytest.mark.parametrize("cache_gib", [2.0, 0.0])
def test_a_training_set_without_a_whole_image_stops_the_run(cache_gib: float, tmp_path: Path) -> None:
    for part in ("train", "val"):
        make_folder(tmp_path / "data" / part, {"a": 4, "b": 4})
    for path in (tmp_path / "data" / "train").rglob("*.png"):
        truncate(path)
    with pytest.raises(ValueError, match=r"data\.root: none of the 6 images can be decoded; .*train/./00"):
        train(folder_config(tmp_path / "data", on_broken_image="skip", cache_gib=cache_gib), tmp_path / "run")


def spoil_class(root: Path) -> None:
    (root / "val" / "b" / "000.png").rename(root / "val" / "b" / "000.txt")


TEST_FOLDERS: dict[str, tuple[dict[str, Any], Callable[[Path], None] | None, str]] = {
    "absent": ({"test_folder": "nope"}, None, r"data\.test_folder: no test images: there is no folder '.*nope'"),
    "empty class": ({}, spoil_class, r"data\.root: class folder '.*val/b' holds no images"),
    "training": ({"test_folder": "train"}, None, r"data\.test_folder: 'train' .* holds the training images"),
    "training, in disguise": ({"test_folder": "val/../train"}, None, r"data\.test_folder: .* the training images"),
}


@pytest.mark.parametrize("name", TEST_FOLDERS)
def test_a_wrong_test_folder_is_refused_before_training(name: str, tmp_path: Path) -> None:
    data, spoil, message = TEST_FOLDERS[name]
    for part in ("train", "val"):
        make_folder(tmp_path / "data" / part, {"a": 4, "b": 1 if part == "val" else 4})
    if spoil:
        spoil(tmp_path / "data")
    with pytest.raises(ValueError, match=message):
        train(folder_config(tmp_path / "data", **data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_figures")
def test_another_test_folder_may_be_given_at_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("train", "val", "other"):
        make_folder(tmp_path / "data" / part, {"a": 5 if part == "other" else 4, "b": 4})
    config = tiny(folder_config(tmp_path / "data", batch_size=2), train={"save_every_steps": 1})
    kill_at(2, config, tmp_path / "run", monkeypatch)
    again = tiny(config, data={"test_folder": "other", "on_broken_image": "skip"})
    assert train(again, tmp_path / "run", resume=True)["test.n_seen"] == 9


@pytest.mark.usefixtures("no_figures")
def test_what_was_loaded_is_said_once_and_the_header_names_the_model(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    unbroken: Callable[[ClassificationRun], Path],
) -> None:
    source = unbroken(tiny())
    config = tiny(model={"name": None, "image_size": None, "patch_size": None, "width": None, "depth": None})
    config = tiny(config, model={"num_heads": None, "pretrained": str(source)}, train={"epochs": 1})
    train(config, tmp_path / "tuned")
    said = capsys.readouterr()
    assert said.err.count(f"{source}: {len(last(source).tensors['model'])} tensors, ") == 1
    assert f"{source}, image (8, 8), 3 classes" in said.out
    train(config, tmp_path / "tuned", resume=True)
    assert " tensors, " not in capsys.readouterr().err


def test_the_test_set_is_opened_after_training_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened(Exception):
        pass

    def refuse(_: Any) -> None:
        raise Opened

    monkeypatch.setattr("vit.data.images.open_test", refuse)
    monkeypatch.setattr("vit.tasks.classification.report.open_test", refuse)
    with pytest.raises(Opened):
        train(tiny(), tmp_path)
    progress = last(tmp_path).state["progress"]
    assert (progress["epoch"], progress["step"]) == (2, 6)


def test_the_same_gradient_however_a_step_is_divided(tmp_path: Path) -> None:
    config = tiny(**RANDOM)
    whole = gradients(config, tmp_path)
    for parts in (2, 4):
        divided = gradients(tiny(config, train={"accumulation_steps": parts}), tmp_path)
        assert_close(divided, whole)


def gradients(config: ClassificationRun, run: Path) -> list[dict[str, Tensor]]:
    """The gradients of every step of the first epoch, the ragged last included, all from the first weights."""
    session = open_session(tiny(config, optim={"name": "sgd", "momentum": 0.0, "lr": 1e-30, "weight_decay": 0.0}), run)
    found: list[dict[str, Tensor]] = []

    @contextmanager
    def watch(stage: str) -> Iterator[None]:
        if stage == "update":
            named = session.unwrapped_model.named_parameters()
            gradients = {name: parameter.grad for name, parameter in named}
            found.append({name: gradient.clone() for name, gradient in gradients.items() if gradient is not None})
            assert found[-1].keys() == gradients.keys()
        yield

    for _ in loop.steps(session, watch):
        pass
    return found


@pytest.mark.parametrize("clip_norm", [0.1, 100.0])
def test_a_gradient_longer_than_clip_norm_is_scaled_to_it(clip_norm: float, tmp_path: Path) -> None:
    sgd = {"name": "sgd", "lr": 0.5, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "warmup_epochs": 0.0}
    session = open_session(tiny(optim={**sgd, "clip_norm": clip_norm}), tmp_path)
    model = session.unwrapped_model
    expected: list[Tensor] = []

    @contextmanager
    def watch(stage: str) -> Iterator[None]:
        if stage == "reduce":  # the gradient as the backward pass left it
            gradient = flat(*(tensor.grad for tensor in model.parameters() if tensor.grad is not None))
            norm = float(gradient.norm())
            assert 0.2 < norm < 50
            expected.append(flat(*model.parameters()) - 0.5 * min(1, clip_norm / norm) * gradient)
        yield

    for number, _ in enumerate(loop.steps(session, watch)):
        torch.testing.assert_close(flat(*model.parameters()), expected[number])
    assert len(expected) == 3


def flat(*tensors: Tensor) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def test_the_average_follows_every_step(tmp_path: Path) -> None:
    """By the recursion by hand; the first decay is that of the warm-up, 2 / 11, the others are the setting's."""
    session = open_session(tiny(optim={"lr": 0.1, "warmup_epochs": 0.0}, train={"ema_decay": 0.2}), tmp_path)
    assert session.average is not None
    expected = flat(*session.unwrapped_model.state_dict().values())
    for decay, _ in zip((2 / 11, 0.2, 0.2), loop.steps(session), strict=True):
        expected = decay * expected + (1 - decay) * flat(*session.unwrapped_model.state_dict().values())
        torch.testing.assert_close(flat(*session.average.tensors.values()), expected)


def assert_close(ours: list[dict[str, Tensor]], theirs: list[dict[str, Tensor]]) -> None:
    assert len(ours) == len(theirs) == 3
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        for name, gradient in other.items():
            error = (one[name] - gradient).norm()
            assert error <= 2e-6 + 1e-5 * gradient.norm(), f"step {step}, {name}: {error}"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler warns itself about how it traces
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    "augment",
    [
        pytest.param({}, id="one size", marks=pytest.mark.exhaustive),
        pytest.param({"first_image_size": 4, "growing_epochs": 1}, id="growing"),
    ],
)
def test_a_compiled_run_resumes_and_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, augment: dict[str, int]
) -> None:
    config = tiny(augment=augment, train={"epochs": 2, "compile": True, "ema_decay": 0.9})
    with monkeypatch.context() as patch:
        at_step(patch, 4, kill)
        with pytest.raises(Killed):
            train(config, tmp_path)
    train(config, tmp_path, resume=True)
    whole = tmp_path / "plain"
    train(tiny(config, train={"compile": False}), whole)
    for name, tensor in last(whole).tensors["model"].items():
        torch.testing.assert_close(last(tmp_path).tensors["model"][name], tensor, rtol=1e-2, atol=1e-3)
