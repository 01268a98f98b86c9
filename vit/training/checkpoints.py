"""Saving a session, and starting or continuing it in a run folder. The files are `vit/runs.py`'s."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from accelerate.utils import broadcast_object_list

from vit.config import ImageRun, RunConfig, check
from vit.config.run_state import check_state
from vit.data.folders import FileSource, check_outside
from vit.data.loading import UnreadableImage
from vit.data.parts import folders_in, holds_images
from vit.data.run_images import (
    RunImage,
    RunImages,
    changes,
    forgetting,
    list_images,
    list_of,
    read_images,
    trained,
    write_images,
)
from vit.processor import device_name
from vit.run_lock import run_locked
from vit.runs import (
    Checkpoint,
    damaged_checkpoints,
    discard_after,
    holds_checkpoints,
    last_checkpoint,
    make_folder,
    read_checkpoint,
    read_metrics,
    replace_atomically,
    restore_metrics,
    write_checkpoint,
)
from vit.settings import (
    DEFAULT,
    WEIGHTS,
    differences,
    dump_run_config,
    is_dumped,
    read_run_config,
    read_summary,
    run_config_from,
)
from vit.training.progress import Progress
from vit.training.schedule import learning_rate
from vit.training.session import Session, normalizes_micro_batches
from vit.training.state import gather_tensors, scatter_tensors
from vit.training.trackers import start_trackers
from vit.versions import checkout_commit

log = logging.getLogger(__name__)

OF_THE_WEIGHTS = ("data.mean", "data.std", "model.image_size")
"""Settings that the pretrained weights decide where they are not set (`vit/tasks/images.py`)."""
_NEEDED = ("config", "task", "progress", "best", "data_fingerprint", "precision", "scaler", "processes")
"""Keys of a checkpoint's state without which no run can be continued."""
_FREE_TO_CHANGE = (
    *("device", "output_dir"),
    *("data.root", "data.test_folder", "data.test_table", "data.on_broken_image", "data.download"),
    *("data.workers", "data.cache_gib", "data.eval_batch_size"),
    *("train.accumulation_steps", "train.compile", "train.compile_blocks", "train.cuda_graphs", "train.precision"),
    *("train.gradient_checkpointing", "train.log_every_steps", "train.trackers"),
    *("train.save_every_epochs", "train.save_every_steps"),
)
"""Settings that may differ when a run is continued: they change speed and locations, not results. `train.epochs`,
which is not among them, may be another number that has not been reached.

`train.accumulation_steps` is not among them where a BatchNorm learns: its statistics are those of a micro-batch.

A broken image that is skipped has always had weight 0, so even that setting leaves finished steps as they were."""


_WRITTEN_AT_THE_END = ("README.md", "summary.json", "analysis.html", "analysis.json", "figures", "predictions")


@contextmanager
def folder_locked(session: Session) -> Iterator[None]:
    """Make the run folder and hold its lock. Every process calls it; ValueError in all where another run holds it."""
    if session.task.info.images is not None:
        check_outside("output_dir", session.run, session.task.info.images[0].source)
    with ExitStack() as held:
        refusal = None
        if session.is_main:
            make_folder(session.run)
            try:
                held.enter_context(run_locked(session.run))
            except ValueError as error:
                refusal = str(error)
        _refuse_everywhere(refusal)
        yield


def _refuse_everywhere(refusal: str | None) -> None:
    """ValueError in all processes if the main one has found a reason. Every process calls it."""
    told = [refusal]
    broadcast_object_list(told)  # does nothing where there is one process
    if told[0] is not None:
        raise ValueError(told[0])


@contextmanager
def broken_images_unlisted(session: Session) -> Iterator[None]:
    """A training image that ended the run because it is broken may be repaired before the run continues."""
    try:
        yield
    except UnreadableImage as error:
        if (listed := list_of(session.run)).is_file():
            write_images(listed, forgetting(read_images(listed), error.name))
        raise


def start_run(session: Session, resume: bool, origins: dict[str, str]) -> dict[str, Any] | None:
    """Write `config.yaml` into the run's folder, and continue from the last checkpoint if `resume`.

    The summary of a run that was finished already is returned, and nothing is written.
    ValueError, and nothing is touched, if the folder holds a run that this one would overwrite or cannot continue.
    """
    run = session.run
    if not resume and (holds_checkpoints(run) or read_metrics(run)):  # settings alone: nothing was trained there
        raise ValueError(
            f"output_dir: {str(run)!r} holds a run already; continue it with --resume {run} or choose another folder"
        )
    if not (holds_checkpoints(run) or read_metrics(run) or (resume and _has_own_settings(session))):
        _check_replaces_nothing(run)
    session.accelerator.wait_for_everyone()  # every process has checked before the main one writes
    continued = load_session(session) if resume else None
    if continued is not None and (summary := _finished(session)):
        if session.is_main and len(read_metrics(run)) < len(read_metrics(continued.checkpoint)):
            restore_metrics(run, session.progress.step, continued.checkpoint)
        return summary
    if session.progress.step < session.total_steps:  # else it is only tested here
        session.progress.begin_stretch(device_name(session.accelerator.device.type), checkout_commit())
    images = _images_of_run(session, continued=continued is not None)
    start_trackers(session.accelerator, session.config, run, resumed=session.progress.step > 0)
    if session.is_main:
        with replace_atomically(run / "config.yaml") as unfinished:
            decided = dict.fromkeys(session.task.info.from_weights, WEIGHTS)
            unfinished.write_text(dump_run_config(session.config, origins | decided))
        restore_metrics(run, session.progress.step, None if continued is None else continued.checkpoint)
        discard_after(run, session.progress.step)
        if images:
            write_images(list_of(run), images)
        if session.progress.step == 0:
            sys.stderr.writelines(f"{line}\n" for line in session.task.info.notes)
        if continued is not None and continued.note:
            print(continued.note, file=sys.stderr)
    session.accelerator.wait_for_everyone()
    return None


def _check_replaces_nothing(run: Path) -> None:
    """ValueError for a folder without a run that holds images, or files that a run would replace.

    What a run leaves that was stopped at once may be there.
    """
    folders = [folder for folder in folders_in(run) if folder.name not in _WRITTEN_AT_THE_END]
    images = next((folder.name for folder in folders if holds_images(folder)), None)
    rule = f"it holds images, in {images}/, and a run's folders beside them would be taken for classes"
    check(images is None, "output_dir", str(run), f"{rule}; name another folder")
    found = [name for name in _WRITTEN_AT_THE_END if (run / name).exists()]
    config, history = run / "config.yaml", run / "metrics.jsonl"
    if config.is_file() and not is_dumped(config.read_text(encoding="utf-8", errors="replace")):
        found.append(config.name)
    if history.is_file() and history.stat().st_size:  # and nothing of it is a run's
        found.append(history.name)
    if list_of(run).is_file() and not config.is_file():
        found.append(list_of(run).name)
    rule = f"a run writes such files, and these are none of a run: {', '.join(found)}; name another folder"
    check(not found, "output_dir", str(run), rule)


def _has_own_settings(session: Session) -> bool:
    """Whether the run's folder has the settings that it is continued with: it is a run, whatever it has lost."""
    settings = session.run / "config.yaml"
    try:
        return settings.is_file() and (
            forbidden_changes(read_run_config(settings)[0], session.config).keys() <= {"train.epochs"}
        )
    except ValueError:
        return False


def _finished(session: Session) -> dict[str, Any]:
    """The summary of a run with nothing left to train or to test, whatever became of its checkpoints; else empty."""
    summary = read_summary(session.run)
    asked = session.total_steps, session.config.train.epochs
    return summary if (summary.get("steps"), summary.get("epochs")) == asked else {}


def _images_of_run(session: Session, *, continued: bool) -> RunImages:
    """The list of the run's images, on the main process. ValueError in all if a continued run's are others now."""
    images, refusal = RunImages(), None
    if session.is_main and session.task.info.images is not None:
        images = list_images(*session.task.info.images)
        listed = list_of(session.run)
        if images and continued and not listed.is_file():  # nor may the list say later that they are those of the start
            print(f"note: {listed} is missing: whether images have been replaced is not known", file=sys.stderr)
            images = {file: RunImage(image.part, "") for file, image in images.items()}
        elif images and continued and (found := _what_changed(session, images)):
            refusal = (
                f"data.root: images are not those that {session.run} was trained on: {found}; put them back, or start "
                "another run with --output_dir"
            )
    _refuse_everywhere(refusal)
    return images


def _what_changed(session: Session, images: RunImages) -> str:
    """As far as the run's list tells it."""
    listed, splits = list_of(session.run), session.task.info.images
    if splits is None or not isinstance(splits[0].source, FileSource) or not listed.is_file():
        return ""
    return changes(trained(read_images(listed)), images, splits[0].source.root)


def save_session(session: Session) -> Path | None:
    """Write a checkpoint; every process calls it, the main one writes."""
    tensors = gather_tensors(session)
    scaler = session.accelerator.scaler
    state = {
        "progress": asdict(session.progress),
        "best": session.progress.best,
        "model_name": session.task.info.model_name,
        "task": session.task.state(),
        "config": asdict(session.config),
        "data_fingerprint": session.task.info.fingerprint,
        "images": session.names_of_images,
        "precision": session.precision,
        "scaler": None if scaler is None else scaler.state_dict(),
        "processes": session.accelerator.num_processes,
    }
    written = None
    if session.is_main:
        written = write_checkpoint(session.run, session.progress.step, Checkpoint(state, tensors))
    session.accelerator.wait_for_everyone()
    return written


class Continued(NamedTuple):
    """Where a run goes on from."""

    checkpoint: Path
    note: str
    """For the user, about another number of epochs than before; else empty."""


def load_session(session: Session) -> Continued | None:
    """Continue from the newest checkpoint that verifies, and return it; from the beginning where there is none yet.

    ValueError when the settings or the data differ from those the checkpoint was made with, and, naming them, when
    there are checkpoints and all are damaged.
    """
    path = last_checkpoint(session.run)
    if path is None:
        if damages := damaged_checkpoints(session.run):
            raise ValueError(
                f"--resume: every checkpoint of {str(session.run)!r} is damaged, and none was deleted "
                f"({'; '.join(damages)}); restore one, or start again with another --output_dir"
            )
        _check_nothing_lost(session)
        log.warning("%s holds no checkpoint yet: starting from the beginning", session.run)
        return None
    checkpoint = read_checkpoint(path)
    check_state(checkpoint.state, path, _NEEDED)
    before: RunConfig = run_config_from(checkpoint.state["config"])
    _check_same(session, before, checkpoint.state, path)
    try:
        scatter_tensors(session, checkpoint.tensors)
    except RuntimeError as error:  # of the same settings, an older version's model had other shapes
        reason = " ".join(str(error).split())[-200:]
        rule = "the tensors do not fit the model that this version makes of the run's settings; train it anew"
        raise ValueError(f"{path}: {rule} (…{reason})") from error
    if session.accelerator.scaler is not None:
        session.accelerator.scaler.load_state_dict(checkpoint.state["scaler"])
    session.progress = Progress(**checkpoint.state["progress"])
    _check_counters(session, path)
    _check_epochs(session, before.train.epochs)
    try:
        session.task.load_state(checkpoint.state["task"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: state.json was altered: {error}") from error
    session.accelerator.wait_for_everyone()
    same = session.config.train.epochs == before.train.epochs
    return Continued(path, "" if same else _what_other_epochs_change(session, before.train.epochs))


def _check_nothing_lost(session: Session) -> None:
    """ValueError for a run that has no checkpoint any more, where there must have been one."""
    steps = max((record["step"] for record in read_metrics(session.run) if "step" in record), default=0)
    if steps > _epochs_to_first_save(session) * session.task.train_loader.steps_per_epoch or read_summary(session.run):
        raise ValueError(
            f"--resume: {str(session.run)!r} has no checkpoint any more, although it was trained for {steps} steps; "
            "restore one, or start again with another --output_dir"
        )


def _epochs_to_first_save(session: Session) -> int:
    """By the settings that the run was started with, if its folder still tells them."""
    settings, config = session.run / "config.yaml", session.config
    with suppress(OSError, ValueError):
        config = read_run_config(settings)[0]
    return min(config.train.epochs, config.train.save_every_epochs, config.train.evaluate_every_epochs)


def forbidden_changes(
    before: RunConfig, now: RunConfig, origins: Mapping[str, str] | None = None
) -> dict[str, tuple[Any, Any]]:
    """Dotted name → both values, for the settings that may not change in a run.

    `origins` of the settings before: one that was left to the pretrained weights, and is not set now, is the same.
    """
    changed = differences(before, now)
    left = [name for name in OF_THE_WEIGHTS if (origins or {}).get(name) in (WEIGHTS, DEFAULT)]
    same = [name for name in left if name in changed and changed[name][1] is None]
    return {key: pair for key, pair in changed.items() if key not in (*_FREE_TO_CHANGE, *same)}


def as_begun(config: RunConfig, run: Path) -> RunConfig:
    """The settings with which a run continues: older versions took the weights' own size, and did not write it down."""
    if not isinstance(config, ImageRun) or config.model.image_size or config.model.name:
        return config
    if (checkpoint := last_checkpoint(run)) is None:
        return config
    size = read_checkpoint(checkpoint, []).state.get("task", {}).get("model", {}).get("image_size")
    return config if size is None else replace(config, model=replace(config.model, image_size=tuple(size)))


def _what_other_epochs_change(session: Session, epochs_before: int) -> str:
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


def _check_counters(session: Session, path: Path) -> None:
    progress, an_epoch = session.progress, session.task.train_loader.steps_per_epoch
    expected = progress.epoch * an_epoch + progress.step_in_epoch
    if progress.step != expected or progress.step_in_epoch > an_epoch:
        raise ValueError(
            f"{path}: state.json was altered: progress.step is {progress.step}, and epoch {progress.epoch} with "
            f"{progress.step_in_epoch} more steps, of {an_epoch} an epoch, makes {expected}"
        )


def _check_epochs(session: Session, before: int) -> None:
    """ValueError for another number of epochs than before that has been reached."""
    now, done = session.config.train.epochs, session.progress.step / session.task.train_loader.steps_per_epoch
    rule = f"the run in {str(session.run)!r} has been trained for {done:.4g} of {before} epochs; take more"
    check(now == before or now > done, "train.epochs", now, rule)


def _check_same(session: Session, before: RunConfig, state: dict[str, Any], path: Path) -> None:
    changed = forbidden_changes(before, session.config)
    # what was not written down is compared below, with the model and the preprocessing
    changed = {name: pair for name, pair in changed.items() if name not in OF_THE_WEIGHTS or pair[0] is not None}
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
    if state["data_fingerprint"] != session.task.info.fingerprint:
        said = _what_data_changed(session)
        raise ValueError(f"data.root: the training or validation data are not those that {path} was trained on{said}")
    ours = json.loads(json.dumps(session.task.state()))  # classes follow from the data, which are compared before
    for name in {"model", "preprocessing", "class_names"} & set(ours):
        stored = state["task"].get(name)
        if isinstance(stored, dict):  # an older version may have had fewer fields
            stored = ours[name] | stored
        if ours[name] != stored:
            raise ValueError(f"{path}: {name} in state.json was altered: the run's settings and data give {ours[name]}")
    if normalizes_micro_batches(session.model):
        rule = (
            "the run was started with {}, and the model's BatchNorm normalises each micro-batch by itself; "
            "continue it as it was, or start another one with --output_dir"
        )
        steps, processes = session.config.train.accumulation_steps, session.accelerator.num_processes
        same = steps == before.train.accumulation_steps
        check(same, "train.accumulation_steps", steps, rule.format(before.train.accumulation_steps))
        check(processes == state["processes"], "accelerate: processes", processes, rule.format(state["processes"]))
    if state["precision"] != session.precision:
        raise ValueError(
            f"train.precision: this device would continue in {session.precision}; the run was started in "
            f"{state['precision']}, set it to that"
        )


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
    if not list_of(session.run).is_file():
        return ", or they are those that an earlier version, which kept no list of images, divided otherwise"
    if not (found := _what_changed(session, images)):
        return ""
    remedy = "files were added or removed: make the folder as it was, or start another run with --output_dir"
    return f": {found}; {remedy}"
