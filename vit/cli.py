"""The command `vit`: words in, one room called, lines out. Knows no tensors.

Exit codes: 0 done; 2 the input is wrong (one line on standard error); 1 the machine or the program failed (one line,
where the cause is known); 130 and 143 stopped by a signal, after saving.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DEFAULT_CONFIG = Path("configs/digits_vit.yaml")

_USAGE = """\
vit COMMAND …

  train     train a model:            vit train [--config FILE] [--output_dir DIR] [--resume] [--optim.lr 3e-4 …]
  eval      judge a checkpoint:       vit eval --checkpoint RUN [--select best|last] [--weights raw|ema] [--transfer]
  predict   classify images:          vit predict --checkpoint RUN IMAGE…
  translate translate sentences:      vit translate --checkpoint RUN [--figure PNG] SENTENCE…
  plan      what a run will do:       vit plan [--config FILE] [--figure PNG] [--optim.lr 3e-4 …]
  diff      how two runs differ:      vit diff RUN RUN
  bench     measure speed:            vit bench train|attention|layers …

`vit COMMAND --help` says more."""


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
    except KeyboardInterrupt:
        print("vit: stopped by Ctrl-C", file=sys.stderr)
        return 130
    return 0


def _say(result: str) -> None:
    """Once, however many processes have it."""
    if os.environ.get("RANK", "0") == "0":
        print(result)


def _complain(message: str) -> int:
    print(f"vit: {' '.join(message.split())}", file=sys.stderr)
    return 2


class Parser(argparse.ArgumentParser):
    """argparse whose complaint is one line, and which guesses no option from its first letters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(f"{message}; see `{self.prog} --help`")


def run_parser(name: str, what: str) -> Parser:
    parser = Parser(
        prog=f"vit {name}", description=f"{what} Every setting of the file can be given as --section.setting."
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="YAML file (default: %(default)s)")
    return parser


def check_folder(option: str, folder: Path | None) -> None:
    """ValueError where a folder cannot be made because a file is in its way."""
    for place in () if folder is None else (folder, *folder.parents):
        if place.exists():
            if not place.is_dir():
                raise ValueError(f"{option}: {str(folder)!r} is not valid: {str(place)!r} is a file, not a folder")
            return


def _train(words: list[str]) -> None:
    from vit.launcher import start_missing_processes
    from vit.settings import resolve_run

    start_missing_processes(["train", *words])
    parser = run_parser("train", "Train a model, evaluate it once on the test set, fill the run folder.")
    parser.add_argument("--resume", action="store_true", help="continue the run in the output folder")
    known, overrides = parser.parse_known_args(words)
    resolved = resolve_run(known.config, overrides)
    run = Path(resolved.config.output_dir or Path("runs") / known.config.stem)
    check_folder("output_dir", run)
    from vit.training.loop import train

    summary = train(resolved.config, run, resume=known.resume, origins=resolved.origins)
    _say(f"{run}: {_result(summary)}, {summary['seconds']:.0f} s of training; see {run}/README.md")


def _result(summary: dict[str, Any]) -> str:
    if "test.bleu" in summary:
        return f"test BLEU {summary['test.bleu']:.2f} of {summary['test.n_seen']:.0f} sentences"
    if "test.mse" in summary:
        return f"test error {summary['test.mse']:.4f}, of the fixed kernel {summary['fixed.test.mse']:.4f}"
    images, speed = summary["test.n_seen"], summary["images_per_second"]
    return f"test top-1 {summary['test.top1']:.2%} of {images:.0f} images, {speed:.0f} images/s"


def _eval(words: list[str]) -> None:
    from vit.config import check_positive
    from vit.evaluation.checkpoint import Request, evaluate_checkpoint
    from vit.launcher import start_missing_processes

    start_missing_processes(["eval", *words])
    parser = Parser(
        prog="vit eval",
        description="Evaluate a checkpoint. --data.… settings say on what, --search.… how to translate.",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a run folder, or one of its checkpoints")
    parser.add_argument("--select", choices=("best", "last"), default="best")
    parser.add_argument("--weights", choices=("auto", "raw", "ema"), default="auto", help="auto: ema where it was kept")
    parser.add_argument("--image_size", type=int, help="evaluate at another size; positions are resized")
    parser.add_argument(
        "--transfer", action="store_true", help="also k-NN, few-shot and linear probe on frozen features"
    )
    parser.add_argument("--output_dir", type=Path, help="default: predictions/ of the run")
    known, overrides = parser.parse_known_args(words)
    check_positive("--image_size", known.image_size)
    check_folder("--output_dir", known.output_dir)
    metrics = evaluate_checkpoint(Request(**vars(known), overrides=overrides))
    _say(json.dumps(metrics, indent=2))


def _predict(words: list[str]) -> None:
    from vit.evaluation.classify import classify

    parser = Parser(prog="vit predict", description="The likeliest classes of each image.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a run folder, or one of its checkpoints")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE")
    known = parser.parse_args(words)
    for path, classes in classify(known.checkpoint, known.images, known.device):
        print(path)
        for name, probability in classes:
            print(f"  {probability:6.2%}  {name}")


def _translate(words: list[str]) -> None:
    from vit.config import SearchConfig
    from vit.evaluation.translate import draw_alignment, translate

    parser = Parser(prog="vit translate", description="Translate sentences with a trained translator.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a run folder, or one of its checkpoints")
    parser.add_argument("--beam_size", type=int, default=5, help="1: greedily (default: %(default)s)")
    parser.add_argument("--figure", type=Path, help="draw where the model looked into this PNG; one sentence only")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE")
    known = parser.parse_args(words)
    if known.figure and len(known.sentences) > 1:
        raise ValueError("--figure: it draws one sentence, and there are several")
    check_folder("--figure", known.figure and known.figure.parent)
    results = translate(known.checkpoint, known.sentences, SearchConfig(beam_size=known.beam_size), known.device)
    for result in results:
        print(result.text)
    if known.figure:
        draw_alignment(results[0], known.figure)


def _plan(words: list[str]) -> None:
    from vit.settings import resolve_run

    parser = run_parser("plan", "Say what a run will do and cost, before anything is trained.")
    parser.add_argument("--figure", type=Path, help="draw the learning rate's curve into this PNG")
    known, overrides = parser.parse_known_args(words)
    check_folder("--figure", known.figure and known.figure.parent)
    resolved = resolve_run(known.config, overrides)
    from vit.training.plan import draw_plan, make_plan

    plan = make_plan(resolved.config)
    print(plan.text())
    if known.figure:
        draw_plan(plan, known.figure)


def _diff(words: list[str]) -> None:
    parser = Parser(prog="vit diff", description="How two runs differ, in settings and in results.")
    parser.add_argument("runs", type=Path, nargs=2, metavar="RUN")
    known = parser.parse_args(words)
    from vit.settings import diff_runs

    print(diff_runs(*known.runs))


def _bench(words: list[str]) -> None:
    from vit.cli_bench import bench

    bench(words)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": _train,
    "eval": _eval,
    "predict": _predict,
    "translate": _translate,
    "plan": _plan,
    "diff": _diff,
    "bench": _bench,
}

if __name__ == "__main__":
    sys.exit(main())
