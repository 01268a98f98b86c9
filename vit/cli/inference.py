"""`vit eval`, `vit predict`, `vit translate`: what a checkpoint is good for. Knows no tensors."""

from __future__ import annotations

import json
from pathlib import Path

from vit.cli.compare import check_baseline
from vit.cli.parsing import Parser, check_file, check_folder, say


def evaluate(words: list[str]) -> None:
    from vit.config import check_positive
    from vit.evaluation.checkpoint import Request, evaluate_checkpoint
    from vit.launcher import start_missing_processes

    start_missing_processes(["eval", *words])
    parser = Parser(
        prog="vit eval",
        description="Evaluate a checkpoint. --data.… settings say on what, --search.… how to translate.",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a run folder, or one of its checkpoints")
    parser.add_argument("--select", choices=("best", "last"), default="best")
    parser.add_argument("--weights", choices=("auto", "raw", "ema"), default="auto", help="auto: ema where it was kept")
    parser.add_argument("--image_size", type=int, help="evaluate at another size; positions are resized")
    parser.add_argument(
        "--transfer", action="store_true", help="also k-NN, few-shot and linear probe on frozen features"
    )
    parser.add_argument("--output_dir", type=Path, help="default: predictions/ of the run")
    parser.add_argument("--baseline", help="also compare with this model: a run, timm:NAME, torchvision:NAME, hf:NAME")
    known, overrides = parser.parse_known_args(words)
    check_positive("--image_size", known.image_size)
    check_folder("--output_dir", known.output_dir)
    baseline = vars(known).pop("baseline")
    request = Request(**vars(known), overrides=overrides)
    compare_both = check_baseline(request, baseline) if baseline else None
    say(json.dumps(evaluate_checkpoint(request), indent=2))
    if compare_both:
        compare_both()


def predict(words: list[str]) -> None:
    from vit.evaluation.classify import classify

    parser = Parser(prog="vit predict", description="The likeliest classes of each image.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a run folder, or one of its checkpoints")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE")
    known = parser.parse_args(words)
    for path, classes in classify(known.checkpoint, known.images, known.device):
        print(path)
        for name, probability in classes:
            print(f"  {probability:6.2%}  {name}")


def translate(words: list[str]) -> None:
    from vit.evaluation import translate as translation

    parser = Parser(prog="vit translate", description="Translate sentences with a trained translator.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a run folder, or one of its checkpoints")
    parser.add_argument("--beam_size", type=int, help="1: greedily (default: as the run was tested)")
    parser.add_argument("--figure", type=Path, help="draw where the model looked into this PNG; one sentence only")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE")
    known = parser.parse_args(words)
    if known.figure and len(known.sentences) > 1:
        raise ValueError("--figure: it draws one sentence, and there are several")
    if known.figure and known.figure.suffix != ".png":
        raise ValueError(f"--figure: {str(known.figure)!r} is not valid: it must end in .png")
    check_file("--figure", known.figure)
    results = translation.translate(known.checkpoint, known.sentences, known.beam_size, known.device)
    for result in results:
        print(result.text)
    if known.figure:
        translation.draw_alignment(results[0], known.figure)
