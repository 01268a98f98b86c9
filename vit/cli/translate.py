"""`vit translate`: sentences, and a picture of the attention."""

from __future__ import annotations

from pathlib import Path

from vit.cli.output_paths import check_picture
from vit.cli.parsing import Parser


def translate(argv: list[str]) -> None:
    from vit.tasks.translation import translate as translation

    parser = Parser(
        prog="vit translate",
        description="Translate sentences with a trained translator, each of at most 10,000 characters. Memory: "
        "0.75 GB, the weights, and for each of --beam_size hypotheses the square of the sentence's tokens.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a translator's run or checkpoint folder")
    parser.add_argument("--beam_size", type=int, help="1: greedy (default: as in the run's test)")
    parser.add_argument("--figure", type=Path, help="draw the attention into this PNG; one sentence only")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE")
    args = parser.parse_args(argv)
    if args.figure and len(args.sentences) > 1:
        raise ValueError("--figure: it draws one sentence; give only one")
    check_picture("--figure", args.figure)
    results = translation.translate(args.model, args.sentences, args.beam_size, args.device)
    for result in results:
        print(result.text)
    if args.figure:
        translation.draw_alignment(results[0], args.figure)
