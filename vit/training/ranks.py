"""Watches the other processes of a run: when one dies, the rest exit within seconds and one of them reports it.

Without this a rank waits in a collective operation until its timeout, many minutes, for one that was killed. The
processes of this machine are watched by their numbers; those of other machines are left to torch and the launcher.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from accelerate import Accelerator
from accelerate.utils import gather_object

from vit.launcher import end_with_parent, process_namespace, tells_first
from vit.tasks.task import NonFinite
from vit.training.interruption import Stopped, leave_at_once

_SECONDS_BETWEEN_LOOKS = 0.5
_SECONDS_TO_SPEAK = 1.0
"""For a process that fails and says why, before another says that it is gone."""


@contextmanager
def ranks_watched(accelerator: Accelerator, remedy: str) -> Iterator[None]:
    """Leave this process, exit code 1, when another of this machine ends within the block; `remedy` ends the line.

    Every process calls it, and all leave the block together, unless one fails.
    """
    if accelerator.num_processes == 1:
        yield
        return
    end_with_parent()
    watch = _Watch(accelerator, remedy)
    thread = threading.Thread(target=watch.look, name="ranks", daemon=True)
    thread.start()
    try:
        yield
    except Stopped:
        watch.done.set()
        accelerator.wait_for_everyone()
        raise
    except NonFinite:  # the loss is summed over the processes, so that all of them raise it
        watch.done.set()
        raise
    except RuntimeError:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it now, before anything was said
        watch.leave_if_one_ends_within(4 * _SECONDS_TO_SPEAK)  # which the error of a collective operation hides
        raise
    else:
        watch.done.set()
        accelerator.wait_for_everyone()  # nobody may exit earlier: another process may still be watching
    finally:
        watch.done.set()
        thread.join()


class _Watch:
    def __init__(self, accelerator: Accelerator, remedy: str) -> None:
        mine = (accelerator.process_index, _this_machine(), psutil.Process().pid)
        self.done = threading.Event()
        self._remedy = remedy
        self._others = {
            rank: psutil.Process(pid)
            for rank, machine, pid in gather_object([mine])
            if machine == mine[1] and rank != mine[0]
        }

    def look(self) -> None:
        while not self.done.wait(_SECONDS_BETWEEN_LOOKS):
            self._leave_if_one_ended()

    def leave_if_one_ends_within(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._leave_if_one_ended()
            time.sleep(0.1)

    def _leave_if_one_ended(self) -> None:
        ended = [rank for rank, process in self._others.items() if not _runs(process)]
        if not ended:
            return
        time.sleep(_SECONDS_TO_SPEAK)
        if self.done.is_set():
            return
        pids = ", ".join(str(self._others[rank].pid) for rank in ended)
        ranks = f"rank {', '.join(map(str, ended))} of {len(self._others) + 1} (process {pids})"
        line = f"{ranks} ended without a word (killed, or out of memory?), so all end; {self._remedy}"
        leave_at_once(line if tells_first() else None, 1)


def _this_machine() -> tuple[str, ...]:
    """Equal for two processes that see each other's numbers: machines, and containers, may share a name."""
    known = [socket.gethostname(), process_namespace()]
    with suppress(OSError):  # on Linux
        known.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return tuple(known)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
