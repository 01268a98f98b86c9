"""Processes of one run: those that `accelerate launch --cpu` does not start itself, and which of them speaks.

Imports no torch.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import psutil

_PR_SET_PDEATHSIG = 1
_SECONDS_TO_END = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOPPED = (129, 130, 143)
"""Exit codes of a rank that was asked to stop: the others are saving too."""


def start_missing_processes(words: list[str]) -> None:
    """Run `vit WORDS…` in N processes and exit, if `accelerate launch --cpu` started one of N.

    ValueError where N is not on its command line. Does nothing otherwise.
    """
    variables = os.environ
    met = any(name in variables for name in ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"))
    if met or "MASTER_ADDR" not in variables or not launched_with_cpu_flag():
        return
    # Accelerate leaves the other processes to `mpirun` and tells this one only an address, so N is read from the
    # command of the parent process.
    parent = " ".join(psutil.Process().parent().cmdline())
    count = re.search(r"--num[-_]processes[= ](\d+)", parent)
    if count is None:
        raise ValueError(
            "accelerate: its launcher was asked for several processes on a CPU and started one; say "
            "`accelerate launch --cpu --num_processes N`, or use `torchrun --nproc_per_node N train.py --device cpu`"
        )
    end_with_parent()  # the launcher dies of a SIGTERM and passes it on to nobody
    sys.exit(run_ranks(int(count[1]), [sys.executable, "-m", "vit.cli", *words]))


def run_ranks(count: int, command: list[str]) -> int:
    """Run a command in `count` processes joined on this machine; return 0, or the exit code of the first that failed.

    Signals are passed on to all of them, those that arrive while they are started too. When one has failed, the others
    have `_SECONDS_TO_END`, in which they notice it themselves; 1 stands for a process that a signal killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    world = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}  # as torchrun sets it
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until every rank can be told

    def prepare_rank() -> None:
        end_with_parent()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # it would inherit the mask

    for rank in range(count):
        variables = {**world, **os.environ, **address, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        # in a session of its own, so that a Ctrl-C in the terminal reaches it once, from here
        processes.append(subprocess.Popen(command, env=variables, start_new_session=True, preexec_fn=prepare_rank))
    for number in _SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        return _wait_for(processes)
    finally:
        _marker(os.getpid(), address["MASTER_PORT"]).unlink(missing_ok=True)


def _wait_for(processes: list[subprocess.Popen[bytes]]) -> int:
    """Wait until all have ended; kill those that outlive a failed one by `_SECONDS_TO_END`."""
    failed, deadline = 0, math.inf
    while any(process.poll() is None for process in processes):
        if not failed and (failed := _first_failure(processes)) and failed not in _STOPPED:
            deadline = time.monotonic() + _SECONDS_TO_END
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
        time.sleep(0.1)
    failed = failed or _first_failure(processes)
    return 1 if failed < 0 else failed


def _first_failure(processes: list[subprocess.Popen[bytes]]) -> int:
    return next((code for code in (process.poll() for process in processes) if code), 0)


def end_with_parent() -> None:
    """Have Linux send this process SIGTERM when its parent ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def tells_first() -> bool:
    """Whether this process is the first of its launch on this machine to say how the launch ends: true once.

    Always true where there is one process. The ranks share a parent, the launcher, after which a file is named; it says
    when a rank of the last launch told.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True
    begun = psutil.Process().create_time()
    with _marker(os.getppid(), os.environ.get("MASTER_PORT", "")).open("a+") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        marker.seek(0)
        told = marker.read()
        if told and float(told) > begun:
            return False
        marker.truncate(0)
        marker.write(str(time.time()))
        return True


def _marker(launcher: int, port: str) -> Path:
    return Path(tempfile.gettempdir(), f"vit-ranks-{os.getuid()}-{launcher}-{port}")


def launched_with_cpu_flag() -> bool:
    """True under `accelerate launch --cpu`."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")


def process_namespace() -> str:
    """A name for the processes that this one sees by their numbers, as those of a container; empty where unknown."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        return ""
