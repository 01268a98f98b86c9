"""`vit profile`: time of each stage of a training step."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vit.cli.output_paths import check_folder
from vit.cli.parsing import chosen_config, run_parser
from vit.config import check_positive


def profile(argv: list[str]) -> None:
    from vit.settings import resolve_run

    parser = run_parser(
        "profile",
        "Measure the time of each stage of a training step, find the bottleneck, and write a Chrome trace. Memory: "
        "that of `vit train`, and the trace, which grows with --steps.",
    )
    parser.add_argument("--steps", type=int, default=20, help="number of timed steps; default: %(default)s")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/profile"), help="default: %(default)s")
    args, overrides = parser.parse_with_settings(argv)
    check_folder("--output_dir", args.output_dir)
    check_positive("--steps", args.steps)
    config = resolve_run(chosen_config(args.config, overrides), overrides).config
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # else torch's profiler logs that it starts and that there is no GPU
    started = time.perf_counter()
    from vit.experiments.profile import profile_run

    imports = time.perf_counter() - started
    print(profile_run(config, args.output_dir, args.steps, imports).text())
