"""`vit compare`: models beside each other, on the same images. Knows no tensors."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.data_size import train_and_compare
from vit.cli.parsing import Parser, check_folder, refuse_without_effect

if TYPE_CHECKING:
    from vit.evaluation.checkpoint import Request
    from vit.evaluation.comparison.compare import CompareRequest

_DESCRIPTION = """\
Judge any mix of models on the same images, each with its own preprocessing: intervals, paired tests, calibration,
classes, agreement, and what else sets the models apart. MODEL is a run folder or checkpoint, timm:NAME,
torchvision:NAME or hf:NAME. Settings of the images: --data.root, --data.workers, … Stopped? The same command continues.
`vit compare --train FILE FILE` trains recipes on growing parts of their data instead; `vit compare --train --help`."""


def compare(words: list[str]) -> None:
    """Models that exist; with `--train`, recipes trained on growing parts of their data."""
    if any(word.split("=")[0] == "--train" for word in words):
        return train_and_compare(words)
    settings, rest = split_settings(words)
    known = _parser().parse_args(rest)
    check_folder("--output_dir", known.output_dir)
    if translates(known.models[0]):
        return _compare_translators(known, settings)
    from vit.evaluation.comparison.compare import CompareRequest
    from vit.evaluation.comparison.images import resolve_data
    from vit.evaluation.comparison.judge import Resampling

    request = CompareRequest(
        models=known.models,
        data=resolve_data(known.models, known.data, settings),
        output_dir=known.output_dir,
        num_images=known.images,
        select=known.select,
        random_weights=known.random_weights,
        corruptions=known.corruptions,
        speed=known.speed,
        speed_batch_size=known.speed_batch_size,
        real_labels=known.real_labels,
        device=known.device,
        precision=known.precision,
        resampling=Resampling(known.resamples, known.seed),
    )
    _compare_and_report(request)


def translates(model: str) -> bool:
    """Whether it is a run of ours that translates."""
    from vit.evaluation.checkpoint import trained_as
    from vit.runs import holds_checkpoints

    return holds_checkpoints(Path(model)) and trained_as(Path(model)) == "translation"


def _compare_translators(known: Namespace, settings: Sequence[str]) -> None:
    used = ("models", "output_dir", "device", "select")
    refuse_without_effect(known, _parser(), used, "the models are translators")
    settings = [*settings, "--device", known.device]
    from vit.evaluation.translator_comparison import compare_translators

    result = compare_translators([Path(model) for model in known.models], settings, known.output_dir, known.select)
    for name, metrics in result["models"].items():
        print(f"{name}: BLEU {metrics['bleu']:.2f}, perplexity {metrics['perplexity']:.2f}")
    for pair in result["differences"]:
        interval = f"{pair['lower']:+.2f} to {pair['upper']:+.2f}"
        print(f"{pair['of']} − {pair['minus']}: {pair['bleu']:+.2f} BLEU (95 %: {interval})")
    print(f"see {known.output_dir}/bleu_by_length.png")


def check_baseline(request: Request, baseline: str) -> Callable[[], None]:
    """`vit eval --baseline`: what will compare the run with another model. ValueError where that cannot be done."""
    from vit.evaluation.comparison.images import baseline_request

    return partial(_compare_and_report, baseline_request(request, baseline))


def _compare_and_report(request: CompareRequest) -> None:
    from vit.evaluation.comparison.compare import compare
    from vit.evaluation.comparison.report import write_report
    from vit.evaluation.comparison.tables import summary

    comparison = compare(request)
    write_report(comparison, request.output_dir)
    print(summary(comparison.result))
    print(f"see {request.output_dir}/comparison.html")


def split_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(`--section.setting value` pairs, everything else), wherever they stand among the words."""
    settings: list[str] = []
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word.startswith("--") and "." in word.split("=")[0]:
            settings += [word] if "=" in word else [word, *islice(remaining, 1)]
        else:
            rest.append(word)
    return settings, rest


def _parser() -> Parser:
    parser = Parser(prog="vit compare", description=_DESCRIPTION)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a run, timm:NAME, torchvision:NAME or hf:NAME")
    parser.add_argument("--data", help="a folder of images or a data set's name; default: that of the first run")
    parser.add_argument("--images", type=int, help="judge on about so many test images, classes balanced")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/comparison"), help="default: %(default)s")
    parser.add_argument("--random_weights", action="store_true", help="build the libraries' models without weights")
    parser.add_argument("--corruptions", action="store_true", help="also on images made worse, 76 times as many")
    parser.add_argument("--speed", action="store_true", help="also images a second, in turns, and peak memory")
    parser.add_argument("--speed_batch_size", type=int, default=16, help="images at once (default: %(default)s)")
    parser.add_argument("--real_labels", type=Path, metavar="FILE", help="ReaL's real.json, for ImageNet's validation")
    parser.add_argument("--select", choices=("best", "last"), default="best", help="checkpoint of our runs")
    parser.add_argument("--resamples", type=int, default=10_000, help="of the bootstrap (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap and of random weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16 or fp16")
    return parser
