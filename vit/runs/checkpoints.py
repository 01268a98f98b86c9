"""Checkpoints: written whole, verified by their hashes, and found."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vit.config.run_state import check_state
from vit.runs.history import HISTORY, read_metrics
from vit.runs.writing import exchange, flush, make_folder, write_safetensors

log = logging.getLogger(__name__)

_HASHES = "hashes.json"
_STATE = "state.json"
_STEP = re.compile(r"step-(\d+)")
_TICK = 2.0
"""Seconds within which a file may change twice and keep its time."""


class DamagedCheckpoint(ValueError):
    """A checkpoint that is incomplete or was altered after it was written."""


@dataclass(frozen=True)
class Checkpoint:
    """A run's saved state: groups of named tensors (`model`, `ema`, `optimizer`) and a JSON state."""

    state: dict[str, Any]
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    path: Path | None = None


def write_checkpoint(run: Path, step: int, checkpoint: Checkpoint, keep: int = 2) -> Path:
    """Write `RUN/checkpoints/step-…`, then delete all but the newest `keep` and the best ones that these name.

    It holds a copy of the run's history, from which `restore_metrics` continues.
    """
    root = run / "checkpoints"
    make_folder(root)
    for leftover in (*root.glob(".writing-*"), *root.glob(".removing-*")):
        shutil.rmtree(leftover, ignore_errors=True)
    target = root / _folder_name(step)
    temporary = root / f".writing-{target.name}-{os.getpid()}"
    temporary.mkdir()
    for name, tensors in checkpoint.tensors.items():
        write_safetensors(temporary / f"{name}.safetensors", tensors)
    (temporary / _STATE).write_text(json.dumps(checkpoint.state, indent=1))
    if (run / HISTORY).exists():
        shutil.copyfile(run / HISTORY, temporary / HISTORY)
        flush(run / HISTORY)
    hashes = {file.name: _sha256(file) for file in sorted(temporary.iterdir())}
    (temporary / _HASHES).write_text(json.dumps(hashes, indent=1))
    for path in (*temporary.iterdir(), temporary):
        flush(path)
    if target.exists():  # after a resume from an earlier checkpoint, or after a stop before its validation
        replaced = exchange(temporary, target)
        flush(root)
        shutil.rmtree(replaced)
    else:
        temporary.rename(target)
        flush(root)
    _delete_superseded(root, keep)
    return target


def _folder_name(step: int) -> str:
    return f"step-{step:08d}"


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _set_aside(folder: Path) -> Path:
    """Rename a checkpoint before its files are deleted one by one, so that no reader finds half of it."""
    return folder.rename(folder.with_name(f".removing-{folder.name}-{os.getpid()}"))


def _discard(folder: Path) -> None:
    shutil.rmtree(_set_aside(folder))


def discard_after(run: Path, step: int) -> None:
    """Delete the (damaged) checkpoints that are newer than the one a run continues from."""
    for folder in _step_folders(run / "checkpoints"):
        if _step_of(folder) > step:
            _discard(folder)


def _delete_superseded(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the best that each of these names: a run may continue from any
    of them.
    """
    folders = _step_folders(root)
    kept = set(folders[-keep:])
    for folder in folders[-keep:]:
        state = _read_json(folder / _STATE)
        best = state.get("best") if state else None
        if best:
            kept.add(root / _folder_name(best["step"]))
    for folder in set(folders) - kept:
        _discard(folder)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@lru_cache(maxsize=64)
def _remembered_sha256(file: Path, *_: int) -> str:
    """For a file whose numbers from the disk are these: a command verifies a run's checkpoint several times."""
    return _sha256(file)


def _verified_sha256(file: Path) -> str:
    found = file.stat()
    if time.time() - max(found.st_mtime, found.st_ctime) < _TICK:
        return _sha256(file)
    return _remembered_sha256(file, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def verify_checkpoint(path: Path) -> None:
    """Raise `DamagedCheckpoint`, naming the file, unless every file is there and has the hash it was written with."""
    hashes = _read_json(path / _HASHES)
    if hashes is None:
        raise DamagedCheckpoint(f"{path}: {_HASHES} is missing or cut short")
    unlisted = {_STATE, *(file.name for file in path.glob("*.safetensors"))} - set(hashes)
    if unlisted:
        raise DamagedCheckpoint(f"{path}: {_HASHES} does not list {', '.join(sorted(unlisted))}")
    for name, expected in hashes.items():
        file = path / name
        if not file.is_file():
            raise DamagedCheckpoint(f"{file} is missing")
        if _verified_sha256(file) != expected:
            raise DamagedCheckpoint(f"{file} is not what was written (its SHA-256 differs)")
    named, state = _STEP.fullmatch(path.name), _read_json(path / _STATE) or {}
    step = state.get("progress", {}).get("step") if isinstance(state.get("progress"), dict) else None
    if named is not None and isinstance(step, int) and step != int(named[1]):
        raise DamagedCheckpoint(f"{path} holds the checkpoint of step {step}, which was written elsewhere")
    if named is not None and _is_foreign(path):
        history = path.parent.parent / HISTORY
        raise DamagedCheckpoint(f"{path} is a checkpoint of another run: no line of its history is in {history}")


def _is_foreign(checkpoint: Path) -> bool:
    """Whether its copy of the history and the run's, up to the same step, have no line in common.

    A run that was altered in some lines still has others of its own, and one that has lost all of them is not judged.
    """
    copied = read_metrics(checkpoint)
    last = max((record.get("step", 0) for record in copied), default=0)
    of_run = [record for record in read_metrics(checkpoint.parent.parent) if record.get("step", 0) <= last]
    return bool(of_run and copied) and not any(record in of_run for record in copied)


def read_checkpoint(path: Path, groups: Iterable[str] | None = None) -> Checkpoint:
    """Read a verified checkpoint; `groups` limits the tensors that are read."""
    verify_checkpoint(path)
    names = sorted(file.stem for file in path.glob("*.safetensors"))
    wanted = names if groups is None else [name for name in names if name in set(groups)]
    try:
        tensors = {name: load_file(path / f"{name}.safetensors") for name in wanted}
    except SafetensorError as error:
        raise DamagedCheckpoint(f"{path}: {error}") from error
    state = _read_json(path / _STATE)
    if state is None:
        raise DamagedCheckpoint(f"{path / _STATE} is not JSON")
    return Checkpoint(state=state, tensors=tensors, path=path)


def newest_state(run: Path) -> dict[str, Any]:
    """The state of the run's newest checkpoint, whose tensors are not looked at; empty where there is none."""
    folders = _step_folders(run / "checkpoints")
    return (_read_json(folders[-1] / _STATE) or {}) if folders else {}


def last_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint that verifies; each newer one that does not is named in a warning. None: there is none."""
    refused: list[DamagedCheckpoint] = []
    for folder in reversed(_step_folders(run / "checkpoints")):
        try:
            verify_checkpoint(folder)
        except DamagedCheckpoint as error:
            refused.append(error)
            continue
        for damage in refused:
            _warn_once(f"refused a damaged checkpoint: {damage}; using one before it, {folder.name}")
        return folder
    return None


@cache
def _warn_once(text: str) -> None:
    """A command looks for the checkpoint of a run several times."""
    log.warning("%s", text)


def find_checkpoint(location: Path, select: str = "best") -> Path:
    """The checkpoint of a run folder, or `location` itself where it is a checkpoint folder.

    `select` is `best` (by the validation; the last where none was validated or the best is damaged, which a warning
    says) or `last`.
    """
    if (location / _STATE).is_file():
        return location
    if not location.is_dir():
        raise ValueError(f"checkpoint: {str(location)!r} is not a folder; give a run folder (with checkpoints/ in it)")
    last = last_checkpoint(location)
    if last is None:
        damage = "; ".join(damaged_checkpoints(location)) or "looked in checkpoints/step-*"
        raise ValueError(f"checkpoint: {str(location)!r} holds no readable checkpoint ({damage})")
    state = _read_json(last / _STATE) or {}
    check_state(state, last, [])
    best = state.get("best")
    if select == "last" or not best:
        return last
    folder = last.parent / _folder_name(best["step"])
    try:
        verify_checkpoint(folder)
    except DamagedCheckpoint as error:
        _warn_once(f"refused a damaged checkpoint, the best: {error}; using the last, {last.name}")
        return last
    return folder


def damaged_checkpoints(run: Path) -> list[str]:
    """The damage of each checkpoint of the run that does not verify, the newest first."""
    damages = []
    for folder in reversed(_step_folders(run / "checkpoints")):
        try:
            verify_checkpoint(folder)
        except DamagedCheckpoint as error:
            damages.append(str(error))
    return damages


def holds_run(location: Path) -> bool:
    """Whether a run was started in a folder, even if it has no checkpoint yet."""
    return (location / "config.yaml").exists() or holds_checkpoints(location)


def holds_checkpoints(location: Path) -> bool:
    """Whether a path is a run folder with checkpoints, or a checkpoint folder."""
    return (location / _STATE).is_file() or bool(_step_folders(location / "checkpoints"))


def _step_folders(root: Path) -> list[Path]:
    folders = (folder for folder in root.glob("step-*") if _STEP.fullmatch(folder.name) and folder.is_dir())
    return sorted(folders, key=_step_of)


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():  # reading a pipe would wait for ever
        return None
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):  # the last for brackets in thousands of brackets
        return None
    return content if isinstance(content, dict) else None
