"""`vit compare --train`: train recipes on growing parts of their data and compare the accuracies."""

from __future__ import annotations

from pathlib import Path

from vit.cli.output_paths import check_folder
from vit.cli.parsing import Parser, add_at_once_option, is_main_process, print_once
from vit.config import check


def train_and_compare(argv: list[str]) -> None:
    """Train every recipe on every fraction with every seed and draw accuracy against the number of images."""
    from vit.launcher import start_missing_processes
    from vit.settings import resolve_run

    start_missing_processes(["compare", *argv])
    parser = Parser(
        prog="vit compare --train",
        description="Train recipes from scratch on nested, class-balanced subsets of their data, each seeing as many "
        "images as on all of them. Every setting of the files can be given as --section.setting, for all of them. "
        "To continue a stopped comparison, run the same command again; more fractions, seeds or factors train only "
        "what is missing. Memory: that of `vit train` for the largest recipe, times --at_once.",
    )
    kinds = "YAML files, or names of packaged configurations"
    parser.add_argument("--train", nargs="+", type=Path, required=True, metavar="RECIPE", help=kinds)
    default = [0.05, 0.1, 0.3, 0.5, 1.0]
    parts = "parts of the training images (default: 0.05 0.1 0.3 0.5 1)"
    parser.add_argument("--fractions", nargs="+", type=float, default=default, metavar="PART", help=parts)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from --seed on (default: %(default)s)")
    factors = "learning rates to try, as multiples of each recipe's own (default: 1): the first seed tries all of "
    factors += "them, and the others use the one with the best validation accuracy, for each recipe and part"
    parser.add_argument("--lr_factors", nargs="+", type=float, default=[1.0], metavar="FACTOR", help=factors)
    add_at_once_option(parser)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/data_size"), help="default: %(default)s")
    if {"-h", "--help"} & set(argv):  # else it would be a value that --train lacks
        parser.parse_args(["--help"])
    args, overrides = parser.parse_with_settings(argv)
    check_folder("--output_dir", args.output_dir)
    names = [path.stem for path in args.train]
    check(len(names) > 1, "--train", names[0], "one recipe is compared with nothing; name at least two")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"--train: {name!r} is there twice; recipes are named after their files")
    recipes = {path.stem: resolve_run(path, overrides, "--train") for path in args.train}
    from vit.experiments.data_size import plan_runs, train_all
    from vit.experiments.data_size_table import data_size_markdown, summarize, write_results
    from vit.figures.data_size import MOST_RECIPES

    rule = f"at most {MOST_RECIPES} recipes can be told apart in the figure"
    check(len(names) <= MOST_RECIPES, "--train", len(names), rule)
    runs = plan_runs(recipes, args.fractions, args.seeds, args.output_dir, args.lr_factors)
    result = summarize(train_all(runs, args.at_once))
    if is_main_process():
        write_results(result, args.output_dir)
    print_once(f"{data_size_markdown(result)}\nsee {args.output_dir}/data_size.png")
