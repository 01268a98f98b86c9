"""`vit analyze`: every figure of what is inside a model. Knows no tensors."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from vit.cli.compare import split_settings, translates
from vit.cli.parsing import Parser, check_folder, refuse_without_effect

_DESCRIPTION = """\
Look inside a model: attention distance, positions, filters, maps, entropy, layers compared, receptive field. Each
figure with its numbers and conventions beside it, and one HTML page. MODEL is a run folder or checkpoint, timm:NAME,
torchvision:NAME, hf:NAME, or with --random_weights the name of an architecture. Settings of a data set: --data.root, …
Stopped? The same command continues. Of a translator's run: every head's map of one sentence, and what the heads do on
--images sentences of its test set."""


def analyze(words: list[str]) -> None:
    settings, rest = split_settings(words)
    known = _parser().parse_args(rest)
    output = known.output or Path("runs/analysis") / _folder_name(known.model)
    check_folder("--output", output)
    if translates(known.model):
        _draw_translator(known, settings, output)
        return
    state = _draw(known, settings, output)
    for name, reason in state["left_out"].items():
        print(f"left out: {name}: {reason}")
    print(f"{len(state['pictures'])} figures; see {output}/analysis.html")


def _draw(known: Namespace, settings: list[str], output: Path) -> dict[str, dict[str, str]]:
    from vit.analysis.drawings import DRAWINGS
    from vit.analysis.report import draw_analysis
    from vit.analysis.subjects import SubjectRequest, open_subject

    request = SubjectRequest(
        model=known.model,
        against=known.against,
        places=known.data or (),
        settings=settings,
        num_images=known.images,
        select=known.select,
        random_weights=known.random_weights,
        seed=known.seed,
        device=known.device,
    )
    subject = open_subject(request)
    return draw_analysis(subject, output, known.figures or tuple(DRAWINGS), tell=_tell)


def _folder_name(model: str) -> str:
    """`timm:vit_tiny_patch16_224` → `timm-vit_tiny_patch16_224`, `runs/digits_vit` → `digits_vit`."""
    return Path(model.replace(":", "-")).resolve().name


def _draw_translator(known: Namespace, settings: list[str], output: Path) -> None:
    used = ("model", "images", "output", "select")
    refuse_without_effect(known, _parser(), used, "the model is a translator")
    from vit.analysis.text_drawings import draw_translator

    drawn = draw_translator(
        Path(known.model), output, settings=settings, num_sentences=known.images, select=known.select, tell=_tell
    )
    print(f"{len(drawn)} figures; see {output}/analysis.html")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> Parser:
    parser = Parser(prog="vit analyze", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", help="a run, timm:NAME, torchvision:NAME, hf:NAME, or a name")
    parser.add_argument(
        "--data",
        nargs="+",
        help="a data set's name, a folder, files; default: a run's test images, else two photographs",
    )
    parser.add_argument("--images", type=int, default=64, help="at most so many, or sentences (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="folder (default: runs/analysis/ and the model's name)")
    parser.add_argument("--figures", nargs="+", metavar="NAME", help="only these (default: all)")
    parser.add_argument("--against", metavar="MODEL", help="another model, whose layers are compared with this one's")
    parser.add_argument("--random_weights", action="store_true", help="build the models without trained weights")
    parser.add_argument("--select", choices=("best", "last"), default="best", help="checkpoint of our runs")
    parser.add_argument("--seed", type=int, default=0, help="of random weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    return parser
