"""Commands that train whole recipes: over seeds, without each ingredient, in a limited time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.commands.reporting import benchmark_parser, progress, write_result
from vit.cli.output_paths import check_file, check_folder
from vit.cli.parsing import Parser, add_at_once_option
from vit.config import check_positive


def speedrun(argv: list[str]) -> None:
    what = (
        "Whole trainings, from the start of the process to the accuracy on the test set, where the time went, and a "
        "test over seeds. Options of `vit train` are passed on. A machine with other load is refused. On Linux."
    )
    parser = Parser(prog="python -m benchmarks speedrun", description=what)
    parser.add_argument("--config", required=True, help="a configuration: a file, or the name of a packaged one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="default: 0 1 2 3 4")
    parser.add_argument("--bar", type=float, help="the accuracy to be above at p < 0.01, as 0.8")
    parser.add_argument("--folder", type=Path, default=Path("runs/speedrun"), help="of the runs; default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    args, overrides = parser.parse_known_args(argv)
    check_file("--output", args.output)
    check_folder("--folder", args.folder)
    if args.bar is not None and not 0 < args.bar < 1:
        raise ValueError(f"--bar: {args.bar:g} is not valid: it is a fraction, as 0.8")
    if args.bar is not None and len(args.seeds) < 2:
        raise ValueError("--bar: the spread over seeds needs at least two --seeds")
    repeated = [seed for seed, count in Counter(args.seeds).items() if count > 1]
    if repeated:
        raise ValueError(f"--seeds: {repeated[0]} is there twice; name each seed once")
    for word in filter(lambda word: word.startswith("--"), overrides):
        option = f"--{word[2:].partition('=')[0].replace('-', '_')}"  # as `vit train` reads it
        if option in ("--seed", "--output_dir", "--resume"):
            raise ValueError(f"{option}: it is not valid here: --seeds and --folder say it for every run")
    from benchmarks.speedrun import CONVENTIONS, above, speedrun

    result = speedrun(args.config, overrides, args.seeds, args.folder / Path(args.config).stem, progress)
    if args.bar is not None:
        result["above"] = above(result["runs"], args.bar)
    write_result(result | {"conventions": CONVENTIONS}, args.output, show=True)


def recipes(argv: list[str]) -> None:
    what = (
        "How long the trainings of several recipes take here: some of their steps at each size of the images, in "
        "turns. A machine with other load is refused. On Linux."
    )
    parser = benchmark_parser("recipes", what, turns=3)
    recipe = "a configuration, or one with settings in quotation marks: 'digits_vit --epochs 5'"
    parser.add_argument("recipes", nargs="+", metavar="RECIPE", help=recipe)
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    from benchmarks.recipe_time import recipe_times

    write_result(recipe_times(args.recipes, args.turns, progress), args.output, show=True)


def ablation(argv: list[str]) -> None:
    what = (
        "What each ingredient of a recipe brings: the plain recipe with it, the whole one without it, at equal time of "
        "training. The same command continues it, on another machine too, where it needs the file of --output alone."
    )
    parser = Parser(prog="python -m benchmarks ablation", description=what)
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML: config, settings, ingredients, best")
    parser.add_argument("--minutes", type=float, required=True, help="of training for each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    add_at_once_option(parser)
    parser.add_argument("--folder", type=Path, default=Path("runs/ablation"), help="of the runs; default: %(default)s")
    written = "the result as JSON, written after every run; one that is there is continued; default: FOLDER/NAME.json"
    parser.add_argument("--output", type=Path, help=written)
    args = parser.parse_args(argv)
    folder = args.folder / args.file.stem
    file = args.output or folder.with_name(f"{folder.name}.json")
    check_file("--output", file)
    check_folder("--folder", args.folder)
    check_positive("--minutes", args.minutes)
    from benchmarks.ablation import Ablation, ablate
    from benchmarks.ablation_table import table

    ablation = Ablation.read(args.file)
    file.parent.mkdir(parents=True, exist_ok=True)
    print(table(ablate(ablation, args.minutes, args.seeds, folder, file, progress, args.at_once)))


def budgeted(argv: list[str]) -> None:
    what = (
        "Trainings of a list, each for as many epochs as its minutes hold, at least two. A call ends after --minutes; "
        "the same command continues it."
    )
    parser = Parser(prog="python -m benchmarks budgeted", description=what)
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML: settings, rehearsal, runs")
    parser.add_argument("--minutes", type=float, required=True, help="of this call")
    parser.add_argument("--rehearse", action="store_true", help="with the file's rehearsal settings, a second each")
    parser.add_argument("--folder", type=Path, default=Path("runs/budgeted"), help="of the runs; default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    args = parser.parse_args(argv)
    check_file("--output", args.output)
    check_folder("--folder", args.folder)
    check_positive("--minutes", args.minutes)
    from benchmarks.budgeted import read_list, table, train_list

    runs = read_list(args.file, rehearse=args.rehearse)
    place = args.folder / (f"{args.file.stem}_rehearsal" if args.rehearse else args.file.stem)
    result = train_list(runs, place, args.minutes, progress)
    print(table(result))
    if result["unfinished"]:
        print(f"not finished: {', '.join(result['unfinished'])}; the same command continues")
    write_result(result, args.output)
