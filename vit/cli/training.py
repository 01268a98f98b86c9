"""`vit train`, `vit plan` and `vit diff`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.cli.output_paths import check_no_checkpoint, check_picture, check_writable
from vit.cli.parsing import Parser, chosen_config, is_main_process, print_once, run_parser
from vit.progress import duration


def train(argv: list[str]) -> None:
    from vit.launcher import start_missing_processes
    from vit.runs import holds_run, read_summary
    from vit.settings import resolve_run, resumed_run

    start_missing_processes(["train", *argv])
    parser = run_parser(
        "train",
        "Train a model, evaluate it on the test set at the end, and write all to the run folder. Memory of every "
        "process: 0.75 GB, the weights with gradients and averages, what the blocks compute for a micro-batch, and "
        "decoded images up to --data.cache_gib; `vit plan` gives the numbers.",
    )
    text = "continue this run with its own settings, or, without RUN, the one in the output folder"
    parser.add_argument("--resume", nargs="?", const="", metavar="RUN", help=text)
    args, overrides = parser.parse_with_settings(argv)
    if args.resume == "" and args.config is None:
        usual = Path("runs") / Path(chosen_config(None, overrides)).stem
        folder, others = _output_dir_in(overrides, usual)
        if holds_run(folder):  # with its own settings, which need not be a file's
            args.resume, overrides = str(folder), others
    if args.resume:
        if any(word.split("=")[0] == "--config" for word in argv):
            raise ValueError(f"--config: it has no effect with --resume {args.resume}, which has its own settings")
        run = Path(args.resume)
        resolved = resumed_run(run, overrides)
    else:
        config = chosen_config(args.config, overrides)
        resolved = resolve_run(config, overrides)
        run = Path(resolved.config.output_dir or Path("runs") / Path(config).stem)
        if args.resume == "" and args.config is None and not holds_run(run):  # a bare --resume must not start a new run
            raise ValueError(f"--resume: there is no run in {str(run)!r}; name the one to continue: --resume RUN")
    check_no_checkpoint("output_dir", run)
    check_writable("output_dir", run / "checkpoints")
    from vit.runs import flush_tree
    from vit.tasks import TASKS
    from vit.training import loop

    before = read_summary(run) if args.resume is not None else {}
    summary = loop.train(resolved.config, run, resume=args.resume is not None, origins=resolved.origins)
    task = TASKS[resolved.config.task]
    draw_inside = task.function("draw_inside")
    # a run that was finished already was perhaps killed while these figures were drawn
    if is_main_process() and draw_inside and not (before == summary and (run / "analysis.html").is_file()):
        draw_inside(run, resolved.config)
        flush_tree(run)
    result = f"{task.headline(summary)}, {duration(summary['seconds'])} of training"
    if before == summary:
        print_once(f"{run} was finished already: {result}")
        return
    print_once(f"{run}: {result}")
    print_once(_evaluated_weights(summary))
    print_once(f"model card: {run / 'README.md'}; pictures: {run / 'figures'}")
    print_once("next: " + "   ".join(task.next_commands(shlex.quote(str(run)))))


def _evaluated_weights(summary: dict[str, Any]) -> str:
    epochs, best = summary["epochs"], summary["best.step"]
    if best == summary["steps"]:
        return "evaluated with the weights of the last epoch, the best on the validation set"
    epoch = best * epochs // summary["steps"]
    return f"evaluated with the weights of epoch {epoch} of {epochs}, the best on the validation set"


def plan(argv: list[str]) -> None:
    from vit.settings import resolve_run

    parser = run_parser(
        "plan",
        "Print what a run will do and cost, its memory too, before anything is trained. Listing takes 1 kB a file.",
    )
    parser.add_argument("--figure", type=Path, help="draw the learning rate's curve into this PNG")
    args, overrides = parser.parse_with_settings(argv)
    check_picture("--figure", args.figure)
    resolved = resolve_run(chosen_config(args.config, overrides), overrides)
    from vit.training.plan import draw_plan, make_plan

    planned = make_plan(resolved.config, resolved.origins, figure=args.figure)
    print(planned.text())
    if args.figure:
        draw_plan(planned, args.figure)


def _output_dir_in(words: Sequence[str], usual: Path) -> tuple[Path, list[str]]:
    """The output folder that settings of the command line name, or the usual one; and the other words."""
    found, others, rest = str(usual), list[str](), iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option.replace("-", "_") == "__output_dir":
            found = value if equals else next(rest, found)
        else:
            others.append(word)
    return Path(found), others


def diff(argv: list[str]) -> None:
    what = "Print the differences between two runs, in settings and in results. Memory: 0.1 GB, regardless of the runs."
    parser = Parser(prog="vit diff", description=what)
    parser.add_argument("runs", type=Path, nargs=2, metavar="RUN")
    args = parser.parse_args(argv)
    from vit.settings import diff_runs

    print(diff_runs(*args.runs))
