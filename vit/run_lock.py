"""One process at a time trains in a run folder: `RUN/lock.json` names the host and the process that does.

On one host the process itself tells whether it still runs. For other hosts that share the folder, whoever holds the
lock touches it every half minute: one that has not been touched for five minutes was left behind.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from vit.launcher import process_namespace

log = logging.getLogger(__name__)

_LOCK = "lock.json"
_SECONDS_TO_WRITE = 1.0
"""For a process that has made the file and not yet written into it."""
_SECONDS_BETWEEN_TOUCHES = 30.0
_SECONDS_UNTIL_LEFT = 300.0
"""After so long without a touch a lock of another host was left behind."""


@contextmanager
def run_locked(run: Path) -> Iterator[None]:
    """Hold the lock of an existing run folder.

    ValueError where a running process holds it, or one of another host that has touched it in the last minutes. A lock
    that a process left behind when it was killed is taken over, which a warning says.
    """
    path = run / _LOCK
    mine = {
        "host": socket.gethostname(),
        "namespace": process_namespace(),
        "process": os.getpid(),
        "started": psutil.Process().create_time(),
        "booted": psutil.boot_time(),
        "boot": _boot(),
        "folder": str(run.resolve()),
    }
    with _one_at_a_time(run):  # else one could take away the lock of another that has just taken over a dead one's
        while not _create(path, mine):
            holder = _read(path)
            if holder is None:
                continue  # it was released meanwhile
            why = _why_left(path, holder, mine)
            if _read(path) == holder:  # else another host has taken it over meanwhile
                path.unlink(missing_ok=True)
                log.warning("%s was left behind by %s: taken over", path, why)
    ended = threading.Event()
    touching = threading.Thread(target=_touch, args=(path, mine, ended), name="lock", daemon=True)
    touching.start()
    try:
        yield
    finally:
        ended.set()
        touching.join()
        if _read(path) == mine:
            path.unlink(missing_ok=True)


def _touch(path: Path, mine: dict[str, Any], ended: threading.Event) -> None:
    while not ended.wait(_SECONDS_BETWEEN_TOUCHES):
        with suppress(OSError):  # a disk that fails for a moment; training will say so if it goes on
            if _read(path) != mine:  # this host slept for minutes
                log.error("%s was taken over by another process; stop this one, or both spoil the history", path)
                return
            os.utime(path)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process or thread of this host in at a time; the kernel ends it with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create(path: Path, content: dict[str, Any]) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as stream:
        stream.write(json.dumps(content) + "\n")
    return True


def _read(path: Path) -> dict[str, Any] | None:
    """Read a lock; {} for one that a power cut left empty, None where there is no lock."""
    deadline = time.monotonic() + _SECONDS_TO_WRITE
    while True:
        try:
            content = json.loads(path.read_text(errors="replace"))
        except FileNotFoundError:
            return None
        except ValueError:
            content = None
        if isinstance(content, dict):
            return content
        if time.monotonic() > deadline:
            return {}
        time.sleep(0.05)


def _why_left(path: Path, holder: dict[str, Any], mine: dict[str, Any]) -> str:
    """Who left the lock behind, and why it may be taken over. ValueError where its holder is still training."""
    ended = f"{_name(holder)}, which has ended"
    if not holder:
        return ended
    # containers may share a name, and do not see each other's processes
    elsewhere = holder.get("host") != mine["host"] or holder.get("namespace", mine["namespace"]) != mine["namespace"]
    if elsewhere:
        if _seconds_untouched(path) > _SECONDS_UNTIL_LEFT:
            return f"{_name(holder)}, which has not touched it for minutes"
        raise ValueError(
            f"output_dir: {str(path.parent)!r} is being trained by {_name(holder)}; if that has ended, wait for "
            f"{_SECONDS_UNTIL_LEFT / 60:.0f} minutes, or delete {path}"
        )
    if not _runs(holder):
        return ended
    if holder.get("folder") == mine["folder"]:
        raise ValueError(
            f"output_dir: {str(path.parent)!r} is being trained by {_name(holder)}, and two would spoil its history; "
            "wait for it, stop it, or choose another --output_dir"
        )
    return f"the copying of {holder.get('folder')}, in which {_name(holder)} goes on"


def _seconds_untouched(path: Path) -> float:
    """By the file system's clock, which may differ from every host's."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".clock-") as now:
        try:
            return Path(now.name).stat().st_mtime - path.stat().st_mtime
        except FileNotFoundError:  # it was released meanwhile
            return math.inf


def _runs(holder: dict[str, Any]) -> bool:
    """Whether the process still runs; another one may have got its number since."""
    try:
        process = psutil.Process(holder["process"])
        # when the clock is set, the times at which the host and its processes were started move with it
        same_boot = holder.get("boot", "") != "" and holder["boot"] == _boot()  # earlier versions named none
        moved = psutil.boot_time() - holder["booted"] if same_boot else 0.0
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - moved - holder["started"]) < 1
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return False


def _boot() -> str:
    """The kernel's name for this boot of the host; empty where it gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _name(holder: dict[str, Any]) -> str:
    if not holder:
        return "an unknown process"
    return f"process {holder.get('process')} on {holder.get('host')}"
