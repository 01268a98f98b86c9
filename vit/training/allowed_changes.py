"""Whether a run may continue: settings, data, model and epochs, held against those that it was started with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.config import ImageRun, RunConfig, check
from vit.data.file_source import FileSource
from vit.data.run_images import RunImages, changes, image_list_path, list_images, read_images, without_test
from vit.libraries import library_and_name
from vit.models.model import normalizes_micro_batches
from vit.runs import last_checkpoint, read_checkpoint
from vit.settings import DEFAULT, WEIGHTS, differences, flat_settings, read_run_config
from vit.training.schedule import learning_rate
from vit.training.session import Session
from vit.weights.untold import UNTOLD

OF_THE_WEIGHTS = ("data.mean", "data.std", "model.image_size")
"""Settings that the pretrained weights decide where they are not set (`vit/tasks/image_weights.py`)."""
_WEIGHTS = ("model.pretrained", "distill.teacher")
"""Settings that name weights elsewhere, which may have moved: a checkpoint replaces the first, and knows the second."""
_FREE_TO_CHANGE = (
    *("device", "output_dir"),
    *("data.root", "data.test_folder", "data.test_table", "data.on_broken_image", "data.download"),
    *("data.workers", "data.cache_gib", "data.eval_batch_size"),
    *("train.accumulation_steps", "train.compile", "train.compile_blocks", "train.cuda_graphs", "train.precision"),
    *("train.gradient_checkpointing", "train.log_every_steps", "train.trackers"),
    *("train.save_every_epochs", "train.save_every_steps"),
)
"""Settings that may differ when a run is continued: they change speed and locations, and which images test it at the
end, not what is learned. `train.epochs`, which is not among them, may be another number that has not been reached.

`train.precision` is among them because `auto` and the precision that it stands for are the same: `check_same` compares
what they come to.

`train.accumulation_steps` is not among them where a BatchNorm learns: its statistics are those of a micro-batch.

A broken image that is skipped has always had weight 0, so even that setting leaves finished steps as they were."""


def forbidden_changes(
    before: RunConfig, now: RunConfig, origins: Mapping[str, str] | None = None
) -> dict[str, tuple[Any, Any]]:
    """Dotted name → both values, for the settings that may not change in a run.

    `origins` of the settings before: one that was left to the pretrained weights, and is not set now, is the same.
    """
    changed = differences(before, now)
    left = [name for name in OF_THE_WEIGHTS if (origins or {}).get(name) in (WEIGHTS, DEFAULT)]
    same = [name for name in left if name in changed and changed[name][1] is None]
    same += [name for name in _WEIGHTS if _were_moved(*changed.get(name, (None, None)))]
    return {key: pair for key, pair in changed.items() if key not in (*_FREE_TO_CHANGE, *same)}


def _were_moved(before: Any, now: Any) -> bool:
    """Whether weights of that place may be those of this one."""
    places = [str(place) for place in (before, now) if place is not None and not library_and_name(str(place))[0]]
    return len(places) == 2 and not Path(places[0]).exists() and Path(places[1]).exists()


def as_begun(config: RunConfig, run: Path) -> RunConfig:
    """The settings with which a run continues: older versions took the weights' own size, and did not write it down."""
    if not isinstance(config, ImageRun) or config.model.image_size or config.model.name:
        return config
    if (checkpoint := last_checkpoint(run)) is None:
        return config
    size = read_checkpoint(checkpoint, []).state.get("task", {}).get("model", {}).get("image_size")
    return config if size is None else replace(config, model=replace(config.model, image_size=tuple(size)))


def check_same(session: Session, before: RunConfig, state: dict[str, Any], path: Path) -> None:
    """ValueError, naming it, for what is not as the checkpoint's state has it: settings, data, model, precision."""
    _check_settings(session, before)
    if state["data_fingerprint"] != session.task.info.fingerprint:
        said = _what_data_changed(session)
        raise ValueError(f"data.root: the training or validation data are not those that {path} was trained on{said}")
    _check_teacher(session, before, state["task"])
    _check_task(session, state["task"], path)
    if normalizes_micro_batches(session.model):
        _check_micro_batches(session, before, state["processes"])
    if state["precision"] != session.precision:
        raise ValueError(
            f"train.precision: this device would continue in {session.precision}; the run was started in "
            f"{state['precision']}, set it to that"
        )


def _check_settings(session: Session, before: RunConfig) -> None:
    changed = forbidden_changes(before, session.config)
    # what was not written down is compared by `_check_task`, with the model and the preprocessing
    compared = {*OF_THE_WEIGHTS, *(f"model.{name}" for name in UNTOLD)}
    changed = {name: pair for name, pair in changed.items() if name not in compared or pair[0] is not None}
    _check_own_settings(session.run, before, changed)
    old_epochs, new_epochs = changed.pop("train.epochs", (0, 0))
    if old_epochs and changed:
        raise ValueError(
            f"train.epochs: {new_epochs} is not valid: the run in {str(session.run)!r} was started with {old_epochs}, "
            f"and {', '.join(changed)} would change with it; `vit train --resume {session.run} --epochs N` continues "
            "it with its own settings to another number of epochs"
        )
    if changed:
        key, (old, new) = next(iter(changed.items()))
        raise ValueError(
            f"{key}: {new!r} is not valid: the run in {str(session.run)!r} was started with {old!r}; "
            "continue it as it was, or start another one with --output_dir"
        )


def _check_teacher(session: Session, before: RunConfig, stored_task: Mapping[str, Any]) -> None:
    """ValueError for another teacher than the run was started with, and for one that has moved if the checkpoint does
    not tell its weights: earlier versions did not write them down.
    """
    old, new = differences(before, session.config).get("distill.teacher", (None, None))
    if "teacher" not in stored_task:
        check(old == new, "distill.teacher", new, f"the run was started with {old!r}; put it back there")
        return
    if session.task.state().get("teacher") != stored_task["teacher"]:
        teacher = flat_settings(session.config)["distill.teacher"]
        rule = "its weights are others, or have other names in this version of their library; put those back"
        raise ValueError(f"distill.teacher: {teacher!r} is not the teacher that the run was started with: {rule}")


def _check_task(session: Session, stored_task: Mapping[str, Any], path: Path) -> None:
    """ValueError for another model, preprocessing or classes: as the data are the same, the state was altered."""
    ours = json.loads(json.dumps(session.task.state()))
    for name in {"model", "preprocessing", "class_names"} & set(ours):
        stored = stored_task.get(name)
        if isinstance(stored, dict):  # an older version may have had fewer fields
            stored = ours[name] | stored
        if ours[name] != stored:
            raise ValueError(f"{path}: {name} in state.json was altered: the run's settings and data give {ours[name]}")


def _check_micro_batches(session: Session, before: RunConfig, processes_before: int) -> None:
    rule = (
        "the run was started with {}, and the model's BatchNorm normalises each micro-batch by itself; "
        "continue it as it was, or start another one with --output_dir"
    )
    steps, steps_before = session.config.train.accumulation_steps, before.train.accumulation_steps
    check(steps == steps_before, "train.accumulation_steps", steps, rule.format(steps_before))
    processes = session.accelerator.num_processes
    check(processes == processes_before, "accelerate: processes", processes, rule.format(processes_before))


def _check_own_settings(run: Path, before: RunConfig, changed: Mapping[str, Any]) -> None:
    """ValueError where a setting differs because the run's own file of settings was edited."""
    settings = run / "config.yaml"
    edited = forbidden_changes(before, read_run_config(settings)[0]) if changed and settings.is_file() else {}
    for name in (name for name in changed if name in edited and name != "train.epochs"):
        old, new = edited[name]
        rule = f"{settings} was altered: the run was started with {old!r}; put that back"
        raise ValueError(f"{name}: {new!r} is not valid: {rule}")


def _what_data_changed(session: Session) -> str:
    """As far as the run's list of images tells it."""
    if session.task.info.images is None or not (images := list_images(*session.task.info.images)):
        return ""
    if not image_list_path(session.run).is_file():
        return ", or they are those that an earlier version, which kept no list of images, divided otherwise"
    if not (found := what_images_changed(session, images)):
        return ""
    remedy = "files were added or removed: make the folder as it was, or start another run with --output_dir"
    return f": {found}; {remedy}"


def what_images_changed(session: Session, images: RunImages) -> str:
    """Images that are not those of the run's list any more, in words; empty where it has no list."""
    listed, splits = image_list_path(session.run), session.task.info.images
    if splits is None or not isinstance(splits[0].source, FileSource) or not listed.is_file():
        return ""
    return changes(without_test(read_images(listed)), images, splits[0].source.root)


def check_epochs(session: Session, before: int) -> None:
    """ValueError for another number of epochs than before that has been reached."""
    now, done = session.config.train.epochs, session.progress.step / session.task.train_loader.steps_per_epoch
    rule = f"the run in {str(session.run)!r} has been trained for {done:.4g} of {before} epochs; take more"
    check(now == before or now > done, "train.epochs", now, rule)


def what_other_epochs_change(session: Session, epochs_before: int) -> str:
    """The rate is a function of the samples seen and of their planned number, so the rest follows the other run's."""
    loader, seen = session.task.train_loader, session.progress.samples_seen
    rates = [
        learning_rate(seen, epochs * loader.samples_per_epoch, session.warmup_samples(epochs), session.config.optim)
        for epochs in (session.config.train.epochs, epochs_before)
    ]
    now, before = (f"{rate:.3g}" for rate in rates)
    there = f"{now} there, as before" if now == before else f"{now} there, instead of {before}"
    which = "longer" if session.config.train.epochs > epochs_before else "shorter"
    return (
        f"train.epochs: {session.config.train.epochs} instead of {epochs_before}; from step {session.progress.step} on "
        f"the learning rate is that of the {which} run: {there}"
    )
