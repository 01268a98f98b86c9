"""The command `vit`: words in, one room called, lines out. Knows no tensors.

Exit codes: 0 done; 2 the input is wrong (one line on standard error); 1 the machine or the program failed (one line,
where the cause is known); 130 and 143 stopped by a signal, after saving.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence

from vit.cli import analyze, bench, compare, doctor, export, inference, pipeline, training, weights

_USAGE = """\
vit COMMAND …

  train     train a model:            vit train [--config FILE] [--output_dir DIR] [--resume] [--optim.lr 3e-4 …]
  eval      judge a checkpoint:       vit eval --checkpoint RUN [--select best|last] [--weights raw|ema] [--transfer]
  predict   classify images:          vit predict --checkpoint RUN IMAGE…
  translate translate sentences:      vit translate --checkpoint RUN [--figure PNG] SENTENCE…
  plan      what a run will do:       vit plan [--config FILE] [--figure PNG] [--optim.lr 3e-4 …]
  diff      how two runs differ:      vit diff RUN RUN
  compare   models on one data set:   vit compare MODEL MODEL… [--data DATA] [--corruptions] [--speed]
            or translators:           vit compare RUN RUN… [--data.test_parts …]
            recipes on growing data:  vit compare --train FILE FILE [--fractions 0.05 0.1 0.3 0.5 1] [--seeds 3]
  analyze   look inside a model:      vit analyze MODEL [--data NAME|FOLDER|FILE …] [--output DIR] [--random_weights]
  convert   weights for others:       vit convert SOURCE --to timm|torchvision|hf|npz [--output FILE] [--verify]
  export    one file for others:      vit export MODEL --format onnx|torch --output FILE
  doctor    what mistakes cost:       vit doctor MODEL [--data NAME|FOLDER] [--images 256]
  bench     measure speed:            vit bench forward|step|data|epoch|attention …
  profile   where a run's time goes:  vit profile [--config FILE] [--steps 20] [--data.workers 2 …]

`vit COMMAND --help` says more."""


_KNOWN = {
    "not enough memory": re.compile("out of memory|can't allocate memory|not enough memory"),
    "torch.compile has no compiler on this machine": re.compile(
        "No working C[+][+] compiler|Failed to find C compiler|Cannot find a working triton"
    ),
}
"""Failures of the machine → what torch says of them, on a CPU and on CUDA."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if words is None else words)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if not words or words[0] in ("-h", "--help"):
        print(_USAGE)
        return 0
    command = COMMANDS.get(words[0])
    if command is None:
        return _complain(f"vit: there is no command {words[0]!r}; choose from {', '.join(COMMANDS)}")
    return _guard(command, words[1:])


def _guard(command: Callable[[list[str]], None], words: list[str]) -> int:
    """The user's errors and known failures as one line each; anything else is a defect and shows its traceback."""
    from vit.training.interruption import NonFinite, Stopped

    try:
        command(words)
    except ValueError as error:
        return _complain(str(error))
    except Stopped as stopped:
        print(f"vit: {stopped}", file=sys.stderr)
        return stopped.exit_code
    except (NonFinite, OSError) as error:
        print(f"vit: {error}", file=sys.stderr)
        return 1
    except (MemoryError, RuntimeError) as error:
        line = _known(str(error))
        if line is None and isinstance(error, MemoryError):
            line = f"not enough memory: {error}".removesuffix(": ")
        if line is None:
            raise
        print(f"vit: {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("vit: stopped by Ctrl-C", file=sys.stderr)
        return 130
    return 0


def _known(message: str) -> str | None:
    """What failed, and the message from the words on that tell it; None for what is not the machine's."""
    for what, words in _KNOWN.items():
        if found := words.search(message):
            return f"{what}: {' '.join(message[found.start() :].split())[:200]}"
    return None


def _complain(message: str) -> int:
    print(f"vit: {' '.join(message.split())}", file=sys.stderr)
    return 2


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": training.train,
    "eval": inference.evaluate,
    "predict": inference.predict,
    "translate": inference.translate,
    "plan": training.plan,
    "diff": training.diff,
    "compare": compare.compare,
    "analyze": analyze.analyze,
    "convert": weights.convert,
    "export": export.export,
    "doctor": doctor.doctor,
    "bench": bench.measure,
    "profile": pipeline.profile,
}
