"""`vit train`, `vit plan`, `vit diff`: what a run is told, will do and did. Knows no tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vit.cli.parsing import Parser, check_file, check_folder, is_main_process, run_parser, say


def train(words: list[str]) -> None:
    from vit.launcher import start_missing_processes
    from vit.settings import resolve_run

    start_missing_processes(["train", *words])
    parser = run_parser("train", "Train a model, evaluate it once on the test set, fill the run folder.")
    parser.add_argument("--resume", action="store_true", help="continue the run in the output folder")
    known, overrides = parser.parse_known_args(words)
    resolved = resolve_run(known.config, overrides)
    run = Path(resolved.config.output_dir or Path("runs") / known.config.stem)
    check_folder("output_dir", run)
    from vit.training import loop

    summary = loop.train(resolved.config, run, resume=known.resume, origins=resolved.origins)
    if is_main_process():
        from vit.analysis.run import draw_run

        draw_run(run)
    say(f"{run}: {_result(summary)}, {summary['seconds']:.0f} s of training; see {run}/README.md")


def _result(summary: dict[str, Any]) -> str:
    if "test.bleu" in summary:
        return f"test BLEU {summary['test.bleu']:.2f} of {summary['test.n_seen']:.0f} sentences"
    if "test.mse" in summary:
        return f"test error {summary['test.mse']:.4f}, of the fixed kernel {summary['fixed.test.mse']:.4f}"
    images, speed = summary["test.n_seen"], summary["images_per_second"]
    return f"test top-1 {summary['test.top1']:.2%} of {images:.0f} images, {speed:.0f} images/s"


def plan(words: list[str]) -> None:
    from vit.settings import resolve_run

    parser = run_parser("plan", "Say what a run will do and cost, before anything is trained.")
    parser.add_argument("--figure", type=Path, help="draw the learning rate's curve into this PNG")
    known, overrides = parser.parse_known_args(words)
    check_file("--figure", known.figure)
    resolved = resolve_run(known.config, overrides)
    from vit.training.plan import draw_plan, make_plan

    planned = make_plan(resolved.config)
    print(planned.text())
    if known.figure:
        draw_plan(planned, known.figure)


def diff(words: list[str]) -> None:
    parser = Parser(prog="vit diff", description="How two runs differ, in settings and in results.")
    parser.add_argument("runs", type=Path, nargs=2, metavar="RUN")
    known = parser.parse_args(words)
    from vit.settings import diff_runs

    print(diff_runs(*known.runs))
