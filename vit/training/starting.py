"""Starting a run in its folder, or continuing it there: what the folder may hold. Its files: `vit/runs/`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from vit.config import check
from vit.data.file_source import check_outside
from vit.data.loading import UnreadableImage
from vit.data.parts import folders_in, holds_images
from vit.data.run_images import (
    RunImage,
    RunImages,
    forget_identity,
    image_list_path,
    list_images,
    read_images,
    write_images,
)
from vit.engine import gather_object
from vit.processor import device_name
from vit.run_lock import run_locked
from vit.runs import (
    discard_after,
    holds_checkpoints,
    make_folder,
    read_metrics,
    read_summary,
    replace_atomically,
    restore_metrics,
)
from vit.settings import WEIGHTS, dump_run_config, is_dumped, read_run_config
from vit.training.allowed_changes import forbidden_changes, what_images_changed
from vit.training.checkpoints import load_session
from vit.training.session import Session
from vit.training.trackers import start_trackers
from vit.versions import checkout_commit

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
        is_shared = all(gather_object([_is_seen(session.run)]))
        check(is_shared, "output_dir", str(session.run), "not every process sees it; name a folder that all share")
        yield


def _is_seen(folder: Path, patience: float = 30) -> bool:
    """Whether the folder is there; a network disk may show it some seconds after another machine has made it."""
    end = time.monotonic() + patience
    while not folder.is_dir():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
        with suppress(OSError):
            tuple(folder.parent.iterdir())  # which has some of these disks look again
    return True


@contextmanager
def broken_images_unlisted(session: Session) -> Iterator[None]:
    """A training image that ended the run because it is broken may be repaired before the run continues."""
    try:
        yield
    except UnreadableImage as error:
        if (listed := image_list_path(session.run)).is_file():
            write_images(listed, forget_identity(read_images(listed), error.name))
        raise


def start_run(session: Session, resume: bool, origins: dict[str, str]) -> dict[str, Any] | None:
    """Make the run's folder ready: settings, list of images, trackers; if `resume`, load the last checkpoint and put
    the history back to it.

    The summary of a run that was finished already is returned; of its files, only a history that is cut off is written.
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
            write_images(image_list_path(run), images)
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
    if image_list_path(run).is_file() and not config.is_file():
        found.append(image_list_path(run).name)
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
        listed = image_list_path(session.run)
        if images and continued and not listed.is_file():  # nor may the list say later that they are those of the start
            print(f"note: {listed} is missing: whether images have been replaced is not known", file=sys.stderr)
            images = {file: RunImage(image.part, "") for file, image in images.items()}
        elif images and continued and (found := what_images_changed(session, images)):
            refusal = (
                f"data.root: images are not those that {session.run} was trained on: {found}; put them back, or start "
                "another run with --output_dir"
            )
    _refuse_everywhere(refusal)
    return images


def _refuse_everywhere(refusal: str | None) -> None:
    """ValueError in all processes if the main one has found a reason. Every process calls it."""
    told = [refusal]
    broadcast_object_list(told)  # does nothing where there is one process
    if told[0] is not None:
        raise ValueError(told[0])
