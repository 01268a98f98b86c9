"""`vit analyze`: figures of attention, positions, filters and representations of a model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.images import DATA, find_images, holds_classes, own_test_images
from vit.cli.models import MODEL, add_model_options, model_options, note_random_weights, task_of_run
from vit.cli.output_paths import check_folder, check_no_run
from vit.cli.parsing import Parser, refuse_without_effect, split_settings
from vit.config import DataConfig, check
from vit.wording import counted

if TYPE_CHECKING:
    from vit.data.images import Split

_DESCRIPTION = """\
Look inside a model: attention distance, positions, filters, maps, entropy, layers compared, receptive field. Every
figure is saved with its numbers and conventions, and all are on one HTML page. Settings of a data set: --data.root, …
To continue a stopped analysis, run the same command again. For a translator: every head's attention map of one
sentence, and the heads' behaviour on --images sentences of its test set. Memory: 0.75 GB, the weights, and what every
block computes for the images drawn, as a training step on four of them."""


def analyze(argv: list[str]) -> None:
    settings, rest = split_settings(argv)
    args = _parser().parse_args(rest)
    name = Path(args.model.replace(":", "-")).resolve().name  # timm:NAME → timm-NAME, runs/NAME → NAME
    output = args.output_dir or Path("runs/analysis") / name
    check_folder("--output_dir", output)
    check_no_run("--output_dir", output, besides=args.model)
    task = task_of_run(args.model)
    if task is not None and (analyze_run := task.function("analyze_run")):
        refuse_without_effect(
            args, _parser(), ("model", "images", "output_dir", "select"), f"the model's task is {task.name}"
        )
        from vit.trained_runs import trained_settings

        run, select = Path(args.model), args.select
        config = trained_settings(run, select, settings, allowed=("data",))
        drawn = analyze_run(run, config, output, select=select, num_samples=args.images, progress=_print_progress)
        print(f"{counted(len(drawn), 'figure')}; see {output}/analysis.html")
        return

    from vit.analysis.figures import FIGURES, WITH_ANOTHER
    from vit.analysis.report import draw_analysis, figures_by_reason
    from vit.analysis.targets import open_target, read_images
    from vit.hub import open_models

    asked = {*(args.figures or FIGURES)}
    beside = bool(asked & {*WITH_ANOTHER}) or not asked <= {*FIGURES}  # a wrong name is refused as such
    rule = f"none of the figures asked for draws two models; add one of {', '.join(WITH_ANOTHER)}"
    check(beside or not args.against, "--against", args.against or "", rule)
    _check_against(args.against)
    sources = [args.model, *([args.against] if args.against else [])]
    own = None if args.data else own_test_images(sources, None, settings, args.select)
    places = own[0] if own else find_images(sources, args.data, settings)
    _check_outside(output, places)
    models = open_models(sources, **model_options(args))
    images = [read_images(places, model.preprocessing, args.images) for model in models]
    against = open_target(models[1], images[1], device=args.device) if args.against else None
    target = open_target(models[0], images[0], against=against, device=args.device)
    state = draw_analysis(target, output, args.figures or tuple(FIGURES), progress=_print_progress)
    for model in models:
        note_random_weights(model)
    for reason, names in figures_by_reason(state).items():
        print(f"left out: {', '.join(names)}: {reason}")
    _note_classes(args.data or (), {*state["left_out"]})
    if args.figures and not asked & state["pictures"].keys():
        raise ValueError("--figures: none of them could be drawn, for the reasons above")
    print(f"{counted(len(state['pictures']), 'figure')}; see {output}/analysis.html")


def _note_classes(places: Sequence[str], left_out: set[str]) -> None:
    """Say how folders are read as classes, where figures that need these were left out."""
    if len(places) == 1 and left_out & {"layer_probe", "head_ablation"} and holds_classes(Path(places[0])):
        how = f"if its folders are classes: --data imagefolder --data.root {places[0]}"
        print(f"note: {places[0]} was read as images without classes; {how}", file=sys.stderr)


def _check_against(model: str | None) -> None:
    """ValueError, naming the option, for a model that is none."""
    from vit.hub import source_kind

    try:
        if model is not None:
            source_kind(model)
    except ValueError as error:
        raise ValueError(f"--against: {str(error).removeprefix('model: ')}") from error


def _check_outside(output: Path, places: Split | DataConfig | Sequence[str]) -> None:
    """ValueError for an output folder among the images, where its figures would be taken for images."""
    from vit.data.file_source import check_outside
    from vit.data.images import open_test

    if isinstance(places, DataConfig):
        check_outside("--output_dir", output, open_test(places).source)
    elif isinstance(places, Sequence):
        inside = [place for place in places if Path(place).resolve() in (output.resolve(), *output.resolve().parents)]
        check(not inside, "--output_dir", str(output), "it lies among the images; name a place elsewhere")
    else:
        check_outside("--output_dir", output, places.source)


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> Parser:
    parser = Parser(prog="vit analyze", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--data", nargs="+", help=f"{DATA}; default: a run's test images, else two photographs")
    most = "at most this many; of a translator, sentences (default: %(default)s)"
    parser.add_argument("--images", type=int, default=64, help=most)
    parser.add_argument("--output_dir", type=Path, help="default: runs/analysis/ and the model's name")
    parser.add_argument("--figures", nargs="+", metavar="NAME", help="draw only these (default: all)")
    parser.add_argument(
        "--against", metavar="MODEL", help="a second model, drawn beside the first in two of the figures"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    add_model_options(parser)
    return parser
