"""A malformed input as data, and what happens when a command is given it, in this process or in one of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from vit.cli import main

PARTS = [pytest.param(4, id="a quarter"), pytest.param(1, id="all", marks=pytest.mark.exhaustive)]
"""Which part of a table a test tries: 1 in 4 cases, or all of them before a release."""
MOST_SECONDS = 10
"""Of computing; a machine that is shared may take longer on the clock."""
LONGEST_WAIT = 40
"""Seconds on the clock, after which something waits for what never comes."""
MOST_GIB = 1.0


@dataclass(frozen=True)
class Case:
    """An input that is written into an empty folder, the working folder of the command that is given it."""

    name: str
    write: Callable[[Path], object]
    command: tuple[str, ...]
    taken: str = ""
    """Why the input is rightly taken; empty: it must be refused."""
    says: str = ""
    """Words of the line that refuses it."""
    leaves: str = ""
    """What may be written though the input is refused: the folder of a run that had begun."""


class TooSlow(BaseException):
    """Raised by the alarm; not an Exception, which the code on trial might catch."""


@dataclass(frozen=True)
class Outcome:
    exit_code: int | None
    errors: str
    seconds: float
    gibibytes: float
    written: tuple[str, ...]
    raised: str = ""


def try_here(case: Case, folder: Path) -> Outcome:
    """The command in this process, under an alarm."""
    case.write(folder)
    before, memory, start = _listing(folder), _peak_memory(), time.process_time()
    code, raised, errors = None, "", io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            with _alarm():
                code = main(case.command)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except TooSlow:
            raised = "too slow"
        except Exception as error:  # noqa: BLE001  # whatever gets out is a finding
            raised = f"{type(error).__name__}: {error}"
    seconds, growth = time.process_time() - start, _peak_memory() - memory
    return Outcome(code, errors.getvalue(), seconds, growth, _written(before, folder), raised)


def try_apart(case: Case, folder: Path) -> Outcome:
    """The command in a process of its own, as a user starts it."""
    case.write(folder)
    before, start = _listing(folder), time.perf_counter()
    command = [sys.executable, "-m", "vit.cli", *case.command]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    written = _written(before, folder)
    errors = "".join(line for line in ended.stderr.splitlines(keepends=True) if not line.startswith("WARNING: "))
    # warnings come before the line that refuses; seconds are not judged: an interpreter's start is most of them
    return Outcome(ended.returncode, errors, min(time.perf_counter() - start, MOST_SECONDS), 0.0, written)


def fault(case: Case, outcome: Outcome) -> str:
    """What is wrong with how the command ended; empty: nothing."""
    lines = [line for line in outcome.errors.splitlines() if line.strip()]
    if outcome.raised:
        return f"raised {outcome.raised[:300]}"
    if outcome.seconds > MOST_SECONDS:
        return f"took {outcome.seconds:.0f} s"
    if outcome.gibibytes > MOST_GIB:
        return f"took {outcome.gibibytes:.1f} GiB"
    if case.taken:
        return (
            "" if outcome.exit_code == 0 else f"is to be taken ({case.taken}), exit code {outcome.exit_code}: {lines}"
        )
    if outcome.exit_code != 2:
        return f"exit code {outcome.exit_code}: {lines}"
    if len(lines) != 1:
        return f"{len(lines)} lines: {lines[:4]}"
    written = [path for path in outcome.written if Path(path).parts[0] != case.leaves]
    if written:
        return f"wrote {', '.join(written[:3])}"
    return "" if case.says in lines[0] else f"does not say {case.says!r}: {lines[0]}"


def sample(cases: Sequence[Case], part: int) -> list[Case]:
    """One in `part` cases, always the same ones: drawn, because neighbours in a table have much in common.

    No two cases of the table have the same name.
    """
    assert len({case.name for case in cases}) == len(cases), "two cases of one name"
    return random.Random(0).sample(cases, len(cases) // part)


def judge(
    kind: str, cases: Sequence[Case], folder: Path, attempt: Callable[[Case, Path], Outcome] = try_here
) -> list[str]:
    """Try all cases, print what they came to, and return the faults. No two cases have the same name.

    `VIT_MALFORMED_COUNTS` names a JSON file that gets the counts, `VIT_MALFORMED_LOG` a file for every case's line.
    """
    assert len({case.name for case in cases}) == len(cases), "two cases of one name"
    counts, faults = Counter[str](), []
    for number, case in enumerate(cases):
        place = folder / f"{number:04d}"
        place.mkdir(parents=True)
        outcome = attempt(case, place)
        found = fault(case, outcome)
        counts["failures" if found else "taken" if case.taken else "one line"] += 1
        if found:
            faults.append(f"{case.name}: {found}")
        if log := os.environ.get("VIT_MALFORMED_LOG"):
            with Path(log).open("a") as file:
                said = (found and f"FAULT {found}") or outcome.errors.strip() or "taken"
                file.write(f"{kind}: {case.name} [{outcome.seconds:.1f} s]: {said}\n".replace(str(folder), "…"))
    if tally := os.environ.get("VIT_MALFORMED_COUNTS"):
        known = json.loads(Path(tally).read_text()) if Path(tally).exists() else {}
        names = ("one line", "taken", "failures")
        known[kind] = {"tried": len(cases), **{name: counts[name] for name in names}}
        Path(tally).write_text(json.dumps(known, indent=1) + "\n")
    print(
        f"\n{kind}: {len(cases)} tried, {counts['one line']} one line, {counts['taken']} rightly taken, "
        f"{counts['failures']} failures"
    )
    return faults


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LONGEST_WAIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything in a folder, files with their size and time of change."""
    paths = [Path(parent, name) for parent, folders, files in os.walk(folder) for name in folders + files]
    plain = {path: path.is_file() and not path.is_symlink() for path in paths}
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) if is_file else (0, 0)
        for path, is_file in plain.items()
    }


def _written(before: dict[str, tuple[int, int]], folder: Path) -> tuple[str, ...]:
    """What was made or changed."""
    return tuple(sorted(name for name, mark in _listing(folder).items() if before.get(name) != mark))


def _peak_memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
