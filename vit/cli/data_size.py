"""`vit compare --train`: recipes trained on growing parts of their data, and what came of it. Knows no tensors."""

from __future__ import annotations

import os
from pathlib import Path

from vit.cli.parsing import Parser, check_folder, say


def train_and_compare(words: list[str]) -> None:
    """Train every recipe on every part with every seed, and draw accuracy against the number of images."""
    from vit.launcher import start_missing_processes
    from vit.settings import resolve_run

    start_missing_processes(["compare", *words])
    parser = Parser(
        prog="vit compare --train",
        description="Train recipes from scratch on nested, class-balanced subsets of their data, each seeing as many "
        "images as on all of them. Every setting of the files can be given as --section.setting, for all of them. "
        "Stopped? The same command continues; more fractions or seeds train only what is missing.",
    )
    parser.add_argument("--train", nargs="+", type=Path, required=True, metavar="FILE", help="YAML files")
    parser.add_argument("--fractions", nargs="+", type=float, default=[0.05, 0.1, 0.3, 0.5, 1.0], metavar="PART")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from --seed on (default: %(default)s)")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/data_size"), help="default: %(default)s")
    known, overrides = parser.parse_known_args(words)
    check_folder("--output_dir", known.output_dir)
    names = [path.stem for path in known.train]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--train: {name!r} is there twice; the files' names are the recipes' names")
    recipes = {path.stem: resolve_run(path, overrides) for path in known.train}
    from vit.experiments.data_size import plan_runs, train_all
    from vit.experiments.data_size_table import markdown, summarize, write_results

    runs = plan_runs(recipes, known.fractions, known.seeds, known.output_dir)
    result = summarize(train_all(runs))
    if os.environ.get("RANK", "0") == "0":
        write_results(result, known.output_dir)
    say(f"{markdown(result)}\nsee {known.output_dir}/data_size.png")
