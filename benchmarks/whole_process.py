"""Time and peak memory of a whole process: of any program, or of a command of `vit` that reports its own peak.

`python -m benchmarks.whole_process REPORT ALLOCATOR WORD…` runs `vit WORD…` and writes the peak to the file REPORT.
ALLOCATOR: `kept` or `returned`, what becomes of freed memory, or `own`, what the command chooses. The kernel's count of
a child (`ru_maxrss`) is no less than its parent's memory, so a command measured from a large program reports itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

Allocator = Literal["own", "kept", "returned"]


class Measured(NamedTuple):
    """Time and memory that a command took."""

    exit_code: int
    seconds: float
    peak: int
    """Largest resident memory of the process, MiB."""
    said: str
    """The process's standard error."""


class ProcessFailed(ChildProcessError, RuntimeError):
    """A program that was started to be measured did not end well; the message has its own last line."""


def run_process(words: list[str]) -> tuple[dict[str, float], str]:
    """Seconds and memory (GiB) of a process, and what it printed. ProcessFailed with its last line if it fails."""
    begun = time.perf_counter()
    with TemporaryDirectory() as place:
        said, complained = Path(place) / "out", Path(place) / "err"
        with (
            said.open("w") as out,
            complained.open("w") as err,
            subprocess.Popen(words, stdout=out, stderr=err) as process,
        ):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            lines = complained.read_text().strip().splitlines() or [f"exit code {process.returncode}, without a word"]
            raise ProcessFailed(f"{' '.join(words[:4])} …: {lines[-1]}")
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "memory": usage.ru_maxrss / 2**20}, said.read_text()


def run_command(words: list[str], folder: Path, allocator: Allocator = "own", timeout: float | None = None) -> Measured:
    """`vit` with these words in `folder`, on one thread. RuntimeError where it ends without a report: killed."""
    root = Path(__file__).parents[1]
    report = folder / f"report-{os.getpid()}.json"
    report.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    begun = time.perf_counter()
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.whole_process", str(report), allocator, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    seconds = time.perf_counter() - begun
    if not report.exists():
        raise RuntimeError(f"vit {' '.join(words[:2])} … ended with {found.returncode}: {found.stderr[-300:]}")
    peak = json.loads(report.read_text())
    report.unlink()
    return Measured(found.returncode, seconds, peak, found.stderr)


def _main(report: Path, allocator: Allocator, words: list[str]) -> int:
    from vit.cli import main

    if allocator != "own":
        from vit import engine  # which loads torch: a command that needs none is measured without it

        if allocator == "kept":
            engine.keep_freed_memory()
        else:  # before the module that imports it by name
            engine.keep_freed_memory = lambda: None
    try:
        return main(words)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    finally:
        report.write_text(json.dumps(_peak()))


def _peak() -> int:
    """The largest resident memory of this process so far, MiB; of Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))  # type: ignore[arg-type]
