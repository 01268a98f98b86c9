"""`vit compare`: evaluate several models on the same images and compare them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.data_size import train_and_compare
from vit.cli.finetune import finetune_and_compare
from vit.cli.images import LABELLED, all_images, resolve_data
from vit.cli.models import (
    LEAKY,
    MODEL,
    add_dtype_option,
    add_model_options,
    add_transfer_options,
    classifier_settings,
    model_options,
    task_of_run,
    transfer_options,
)
from vit.cli.output_paths import check_folder, check_no_run
from vit.cli.parsing import Parser, refuse_without_effect, split_settings
from vit.config import ImageRun, check
from vit.tasks import TaskFolder

if TYPE_CHECKING:
    from vit.comparison.compare import CompareRequest, OpenedComparison
    from vit.evaluation.transfer_evaluation import TransferOptions
    from vit.tasks.task import EvalRequest

_DESCRIPTION = """\
Evaluate any mix of models on the same images, each with its own preprocessing: intervals, paired tests, calibration,
classes, agreement, and other differences between the models. Settings of the images: --data.root, --data.workers, … To
continue a stopped comparison, run the same command again. --seed seeds the bootstrap too. --transfer compares frozen
features instead of heads, on any images with one class each. Memory: 0.75 GB, the weights of all models, and a batch
of images (--data.eval_batch_size).
`vit compare MODEL MODEL --finetune --data DATA` fine-tunes them first; `vit compare --finetune --help`.
`vit compare --train RECIPE RECIPE` trains recipes on growing parts of their data; `vit compare --train --help`."""


def compare(argv: list[str]) -> None:
    if any(word.split("=")[0] == "--train" for word in argv):
        return train_and_compare(argv)
    if "--finetune" in argv:
        return finetune_and_compare(argv)
    settings, rest = split_settings(argv)
    args = _parser().parse_args(rest)
    check_folder("--output_dir", args.output_dir)
    check_no_run("--output_dir", args.output_dir)
    task = None if args.transfer else _own_comparison(args.models)
    if task is not None and (compare_runs := task.function("compare_runs")):
        used = ("models", "output_dir", "device", "select", "data", "leaky")
        refuse_without_effect(args, _parser(), used, f"the models' task is {task.name}")
        from vit.trained_runs import trained_settings

        overrides = [*(["--data", args.data] if args.data else []), *settings, "--device", args.device]
        config_of = partial(trained_settings, select=args.select, overrides=overrides)
        runs = [Path(model) for model in args.models]
        print("\n".join(compare_runs(runs, config_of, args.output_dir, args.select, args.leaky)))
        return None
    transfer = transfer_options(args)
    if transfer is not None:
        return _compare_features(args, transfer, settings)
    from vit.comparison.compare import CompareRequest, open_comparison
    from vit.comparison.metrics import Resampling

    seed, options = args.seed, model_options(args)
    if not options["random_weights"]:
        options["seed"] = 0  # else `open_model` would refuse it; without random weights it seeds the bootstrap alone
    request = CompareRequest(
        models=args.models,
        data=all_images(resolve_data(args.models, args.data, settings), args.models, settings),
        output_dir=args.output_dir,
        num_images=args.images,
        options=options,
        corruptions=args.corruptions,
        speed=args.speed,
        speed_batch_size=args.speed_batch_size,
        real_labels=args.real_labels,
        leaky=args.leaky,
        device=args.device,
        precision=args.precision,
        resampling=Resampling(args.resamples, seed),
    )
    compare_and_report(open_comparison(request))


def _own_comparison(models: Sequence[str]) -> TaskFolder | None:
    """The task that compares its runs itself, where a model is a run of such a task.

    ValueError unless all other models are runs of that task.
    """
    tasks = {model: task_of_run(model) for model in models}
    for model, task in tasks.items():
        if task is None or task.function("compare_runs") is None:
            continue
        for other, its in tasks.items():
            if its is not task:
                found = "no training run" if its is None else f"a run of task {its.name!r}"
                features = (
                    ", or all models' features: --transfer --data DATA" if issubclass(task.run_config, ImageRun) else ""
                )
                raise ValueError(
                    f"compare: {other!r} is not valid beside {model!r}, whose task {task.name!r} has metrics of its "
                    f"own: it is {found}; compare runs of that task only{features}"
                )
        return task
    return None


def _compare_features(args: Namespace, transfer: TransferOptions, settings: Sequence[str]) -> None:
    from vit.comparison.metrics import Resampling
    from vit.comparison.transfer import TransferRequest, compare_features
    from vit.comparison.transfer_report import summary, write_transfer_report

    for option in ("corruptions", "speed", "speed_batch_size", "real_labels"):
        value, default = getattr(args, option), _parser().get_default(option)
        check(value == default, f"--{option}", value, "--transfer compares features, not heads")
    seed, options = args.seed, model_options(args)
    if not options["random_weights"]:
        options["seed"] = 0
    request = TransferRequest(
        models=args.models,
        data=resolve_data(args.models, args.data, settings),
        output_dir=args.output_dir,
        transfer=transfer,
        options=options,
        leaky=args.leaky,
        device=args.device,
        precision=args.precision,
        resampling=Resampling(args.resamples, seed),
    )
    result = compare_features(request)
    write_transfer_report(result, request.output_dir)
    print(summary(result))
    print(f"see {request.output_dir}/transfer.html")


def baseline_request(request: EvalRequest, overrides: Sequence[str], baseline: str) -> CompareRequest:
    """Build the comparison of `vit eval --baseline`: the run of `request` and a second model on the same images.

    ValueError for options of `vit eval` that a comparison does not have.
    """
    from vit.comparison.compare import CompareRequest

    check(request.weights == "auto", "--weights", request.weights, "--baseline compares the run's default weights")
    size = request.image_size
    check(size is None, "--image_size", size, "--baseline evaluates each model at its own size")
    both = f"use `vit compare {request.checkpoint} {baseline} --dtype {request.dtype} auto`"
    check(request.dtype == "auto", "--dtype", request.dtype, both)
    config = classifier_settings(request.checkpoint, request.select, overrides)
    return CompareRequest(
        models=[str(request.checkpoint), baseline],
        data=config.data,
        output_dir=request.folder / "comparison",
        options={"select": request.select},
        device=config.device,
        precision=config.train.precision,
    )


def compare_and_report(opened: OpenedComparison) -> None:
    from vit.comparison.compare import compare_opened
    from vit.comparison.report import write_report
    from vit.comparison.tables import summary

    comparison = compare_opened(opened)
    write_report(comparison, opened.request.output_dir)
    print(summary(comparison.result))
    print(f"see {opened.request.output_dir}/comparison.html")


def _parser() -> Parser:
    parser = Parser(prog="vit compare", description=_DESCRIPTION)
    parser.add_argument("models", nargs="+", metavar="MODEL", help=MODEL)
    parser.add_argument("--data", help=f"{LABELLED}; default: that of the first run")
    parser.add_argument("--images", type=int, help="about this many test images, classes balanced (default: all)")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/comparison"), help="default: %(default)s")
    parser.add_argument("--corruptions", action="store_true", help="also on corrupted images, 76 times as many")
    parser.add_argument("--speed", action="store_true", help="also measure images per second and peak memory")
    parser.add_argument("--speed_batch_size", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--real_labels", type=Path, metavar="FILE", help="ReaL's real.json, for ImageNet's validation")
    parser.add_argument("--leaky", action="store_true", help=LEAKY)
    parser.add_argument("--resamples", type=int, default=10_000, help="bootstrap resamples (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16 or fp16")
    add_dtype_option(parser, several=True)
    add_transfer_options(parser)
    add_model_options(parser, several=True)
    return parser
