"""Checks of the files and folders that a command is to write, before it computes anything."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from vit.config import check
from vit.tasks.classification.config import ClassificationRun


def check_folder(option: str, folder: Path | None) -> None:
    """Raise ValueError for a folder that lies among a run's checkpoints, and as `check_writable` does."""
    check_no_checkpoint(option, folder)
    check_writable(option, folder)


def check_writable(option: str, folder: Path | None) -> None:
    """Raise ValueError for a folder that cannot be created or written to."""
    for place in () if folder is None else (folder, *folder.parents):
        if os.path.exists(place):  # noqa: PTH110  Path.exists raises below a folder that may not be entered
            if not place.is_dir():
                raise ValueError(f"{option}: {str(folder)!r} is not valid: {str(place)!r} is a file, not a folder")
            try:
                with tempfile.TemporaryFile(dir=place):
                    return
            except OSError as error:
                raise ValueError(
                    f"{option}: {str(folder)!r} is not valid: {str(place)!r} cannot be written to ({error.strerror})"
                ) from error


def check_file(option: str, file: Path | None) -> None:
    """Raise ValueError for a file that cannot be written or replaced, or whose folder does not allow new files."""
    if file is not None:
        if os.path.isdir(file):  # noqa: PTH112  as above
            raise ValueError(f"{option}: {str(file)!r} is not valid: it is a folder; give a file in it")
        if os.path.exists(file):  # noqa: PTH110
            if not os.path.isfile(file):  # noqa: PTH113
                raise ValueError(f"{option}: {str(file)!r} is not valid: it is a device or a pipe; give a file")
            if not os.access(file, os.W_OK):
                raise ValueError(f"{option}: {str(file)!r} is not valid: it exists and cannot be written to")
        check_folder(option, file.parent)


def check_picture(option: str, file: Path | None) -> None:
    """Raise ValueError for a file that is no PNG, where its numbers beside it would replace another file, and as
    `check_file` does.
    """
    if file is not None:
        check(file.suffix == ".png", option, str(file), "it must end in .png")
        check_file(option, file)
        numbers = file.with_suffix(".json")
        rule = f"its numbers are written to {str(numbers)!r}, which is a file of something else; name another picture"
        is_free = not numbers.exists() or (file.is_file() and _is_of_a_figure(numbers))
        check(is_free, option, str(file), rule)


def _is_of_a_figure(numbers: Path) -> bool:
    """Whether a file is what `save_figure` writes beside a picture."""
    if not numbers.is_file():
        return False
    try:
        content = json.loads(numbers.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "conventions" in content


def check_no_run(option: str, folder: Path, besides: str | None = None) -> None:
    """Raise ValueError for the folder of a run, but for that of the model `besides`, to which the output belongs."""
    from vit.runs import holds_checkpoints

    own = besides is not None and Path(besides).resolve() in (folder.resolve(), *folder.resolve().glob("checkpoints/*"))
    check(own or not holds_checkpoints(folder), option, str(folder), "it is the folder of a run; name another one")


def check_no_checkpoint(option: str, place: Path | None) -> None:
    """Raise ValueError for a file or folder to be written among the checkpoints of a run, which it might replace."""
    if place is None:
        return
    for folder in (place.resolve(), *place.resolve().parents):
        run = folder.parent
        of_run = folder.name == "checkpoints" and (run / "config.yaml").is_file()
        among = of_run and any(folder.glob("step-*"))
        check(not among, option, str(place), f"it lies among the checkpoints of {str(run)!r}; name another place")


def check_outside_run(option: str, place: Path | None, model: str) -> None:
    """ValueError for a file or folder to be written among the checkpoints of a run, or the images of run `model`."""
    from vit.data.file_source import check_outside
    from vit.data.images import open_training
    from vit.runs import holds_checkpoints
    from vit.trained_runs import trained_settings

    check_no_checkpoint(option, place)
    if place is None or not holds_checkpoints(Path(model)):
        return
    config = trained_settings(Path(model), "last")
    if isinstance(config, ClassificationRun) and Path(config.data.root).resolve() in (
        place.resolve(),
        *place.resolve().parents,
    ):
        check_outside(option, place, open_training(config.data)[0].source)
