"""`vit compare`: models beside each other, on the same images. Knows no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vit.cli.data_size import train_and_compare
from vit.cli.parsing import Parser, check_folder

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
        device=known.device,
        precision=known.precision,
        resampling=Resampling(known.resamples, known.seed),
    )
    _compare_and_report(request)


def compare_with_baseline(checkpoint: Path, baseline: str, output_dir: Path, settings: Sequence[str]) -> None:
    """`vit eval --baseline`: a run beside another model, on the run's own data; a bare name is timm's."""
    from vit.evaluation.comparison.compare import CompareRequest
    from vit.evaluation.comparison.images import resolve_data

    source = baseline if ":" in baseline or Path(baseline).exists() else f"timm:{baseline}"
    models = [str(checkpoint), source]
    data = resolve_data(models, None, settings)
    _compare_and_report(CompareRequest(models=models, data=data, output_dir=output_dir))


def _compare_and_report(request: object) -> None:
    from vit.evaluation.comparison.compare import CompareRequest, compare
    from vit.evaluation.comparison.report import write_report
    from vit.evaluation.comparison.tables import summary

    assert isinstance(request, CompareRequest)
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
            settings += [word] if "=" in word else [word, *_next(remaining)]
        else:
            rest.append(word)
    return settings, rest


def _next(words: object) -> list[str]:
    return [word for word in [next(words, None)] if word is not None]  # type: ignore[call-overload]


def _parser() -> Parser:
    parser = Parser(prog="vit compare", description=_DESCRIPTION)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="a run, timm:NAME, torchvision:NAME or hf:NAME")
    parser.add_argument("--data", help="a folder of images or a data set's name; default: that of the first run")
    parser.add_argument("--images", type=int, help="judge on about so many test images, classes balanced")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/comparison"), help="default: %(default)s")
    parser.add_argument("--random_weights", action="store_true", help="build the libraries' models without weights")
    parser.add_argument("--select", choices=("best", "last"), default="best", help="checkpoint of our runs")
    parser.add_argument("--resamples", type=int, default=10_000, help="of the bootstrap (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap and of random weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--precision", default="auto", help="auto, fp32, bf16 or fp16")
    return parser
