"""The command line `vit`: one function for each command, which parses its arguments and prints results.

Exit codes: 0 success, also where the reader of the output has gone (`| head`); 2 invalid input (one line on standard
error); 1 the machine or the program failed (one line, if the cause is known); 129, 130 and 143 stopped by SIGHUP,
Ctrl-C or SIGTERM, after saving where a run is trained.
"""

from __future__ import annotations

import os
import sys

if os.name == "nt":  # before anything is imported that needs fcntl
    sys.stderr.write("vit: it runs on Linux and macOS; on Windows, install it in WSL\n")
    sys.exit(2)

import logging
import re
import select
from collections.abc import Callable, Sequence
from errno import ENAMETOOLONG
from pathlib import Path
from traceback import walk_tb

from vit import __version__
from vit.cli import analyze, compare, doctor, evaluate, export, predict, profile, push, training, translate, weights
from vit.config import nearest
from vit.launcher import tells_first
from vit.terminal import terminal_outlived

_USAGE = """\
vit COMMAND …

  train     train a model:            vit train [--config FILE] [--output_dir DIR] [--optim.lr 3e-4 …]
            continue a run:           vit train --resume RUN [--epochs 20]
  eval      evaluate a model:         vit eval MODEL [--data DATA] [--select best|last] [--weights raw|ema] [--transfer]
            fine-tune it first:       vit eval MODEL --finetune --data DATA [--epochs 5] [--seeds 1]
  predict   classify images:          vit predict MODEL IMAGE… [--output FILE.csv|.jsonl|.parquet]
  translate translate sentences:      vit translate MODEL [--figure PNG] SENTENCE…
  plan      preview a run:            vit plan [--config FILE] [--figure PNG] [--optim.lr 3e-4 …]
  diff      compare two runs:         vit diff RUN RUN
  compare   models on one data set:   vit compare MODEL MODEL… [--data DATA] [--corruptions] [--speed]
            or their frozen features: vit compare MODEL MODEL… --transfer --data DATA [--features head class …]
            or fine-tuned on it:      vit compare MODEL MODEL… --finetune --data DATA [--epochs 5] [--seeds 1]
            or translators:           vit compare RUN RUN… [--data.test_parts …]
            or multi-label runs:      vit compare RUN RUN… [--data DIR]
            recipes on growing data:  vit compare --train RECIPE RECIPE [--fractions 0.05 0.1 0.3 0.5 1] [--seeds 3]
  analyze   look inside a model:      vit analyze MODEL [--data NAME|FOLDER|FILE …] [--output_dir DIR]
  convert   weights to a library:     vit convert MODEL --to timm|torchvision|hf|npz [--output FILE] [--verify]
  export    ONNX, torch, compiled:    vit export MODEL --format onnx|torch|compiled --output FILE
  push      to Hugging Face's hub:    vit push MODEL OWNER/NAME [--folder DIR] [--dry_run]
  doctor    preprocessing mistakes:   vit doctor MODEL [--data NAME|FOLDER] [--images 256]
  profile   time of training stages:  vit profile [--config FILE] [--steps 20] [--data.workers 2 …]

`vit COMMAND --help` lists all options. Speed against other libraries: `python -m benchmarks` in the checkout."""


_MACHINE_FAILURES = {
    "not enough memory": re.compile("out of memory|can't allocate memory|not enough memory"),
    "torch.compile has no compiler on this machine": re.compile(
        "No working C[+][+] compiler|Failed to find C compiler|Cannot find a working triton"
    ),
}
"""Failures of the machine → torch's messages, on a CPU and on CUDA."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if not argv or argv[0] in ("-h", "--help"):
        print(_USAGE)
        return 0
    if argv[0] == "--version":
        print(f"vit {__version__}")
        return 0
    command = COMMANDS.get(argv[0])
    if command is None:
        return _print_invalid(f"there is no command {argv[0]!r}; {nearest(argv[0], COMMANDS)}")
    return run_command(command, argv[1:])


@terminal_outlived()
def run_command(command: Callable[[list[str]], None], argv: list[str]) -> int:
    """Run a command; print user errors and known failures as one line. Anything else is a bug and shows a traceback."""
    from vit.deployment.errors import Unfaithful
    from vit.tasks.task import NonFinite
    from vit.training.interruption import Stopped, ctrl_c_interrupts

    try:
        with ctrl_c_interrupts():
            command(argv)
            sys.stdout.flush()
    except ValueError as error:
        return _print_invalid(str(error))
    except Stopped as stopped:
        _say(str(stopped))
        return stopped.exit_code
    except (NonFinite, OSError, Unfaithful) as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return 0
        if isinstance(error, OSError) and error.errno == ENAMETOOLONG:  # typed, so no failure of the machine
            return _print_invalid(f"{str(error.filename)[:60]!r}…: the name is longer than a file's can be")
        _say(_output_failure(error) or _in_words(error), failed=True)
        return 1
    except (MemoryError, RuntimeError) as error:
        from vit.data.workers import DeadWorker, dead_worker

        line = str(error) if isinstance(error, DeadWorker) else _machine_failure(str(error)) or dead_worker(error)
        if line is None and isinstance(error, MemoryError):
            line = f"not enough memory: {error}".removesuffix(": ")
        if line is None:
            raise
        _say(line, failed=True)
        return 1
    except KeyboardInterrupt:
        _say("stopped by Ctrl-C")
        return 130
    return 0


def _reader_is_gone() -> bool:
    """Whether standard output is a pipe without a reader, as after `| head`; what is left to print is then dropped."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    _drop_output()
    return True


def _output_failure(error: Exception) -> str | None:
    """A line where what could not be written is the output itself, as on a full disk; what is left of it is dropped."""
    if not isinstance(error, OSError) or error.filename is not None:
        return None
    *_, (innermost, _) = walk_tb(error.__traceback__)
    is_output = Path(innermost.f_code.co_filename).parent == Path(__file__).parent  # which writes to no file itself
    try:
        sys.stdout.flush()
    except OSError:
        is_output = True
    if not is_output:
        return None
    _drop_output()
    return f"standard output: what is printed could not be written: {error.strerror}"


def _in_words(error: Exception) -> str:
    """The error's own words; a system error with the file first and without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{str(error.filename)!r}: {error.strerror}"
    return str(error)


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it ends


def _machine_failure(message: str) -> str | None:
    """Return the failure and torch's message from the words that name it; None if the machine is not the cause."""
    for failure, pattern in _MACHINE_FAILURES.items():
        if found := pattern.search(message):
            return f"{failure}: {' '.join(message[found.start() :].split())[:200]}"
    return None


def _print_invalid(message: str) -> int:
    _say(" ".join(message.split()))
    return 2


def _say(line: str, failed: bool = False) -> None:
    """Print a line to standard error; of several processes that do, the first alone prints, with its rank if it
    `failed` where others may not have.
    """
    if tells_first():
        rank = os.environ.get("RANK", "0")
        where = f"rank {rank}: " if failed and os.environ.get("WORLD_SIZE", "1") != "1" else ""
        shown = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)  # no escapes
        print(f"vit: {where}{shown}", file=sys.stderr)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": training.train,
    "eval": evaluate.evaluate,
    "predict": predict.predict,
    "translate": translate.translate,
    "plan": training.plan,
    "diff": training.diff,
    "compare": compare.compare,
    "analyze": analyze.analyze,
    "convert": weights.convert,
    "export": export.export,
    "push": push.push,
    "doctor": doctor.doctor,
    "profile": profile.profile,
}
