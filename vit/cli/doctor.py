"""`vit doctor`: what mistakes of preparing images cost. Knows no tensors."""

from __future__ import annotations

from pathlib import Path

from vit.cli.parsing import Parser, check_file

_DESCRIPTION = """\
Prepare the same images wrongly in one common way after another, and say what it costs the model: accuracy where the
images have labels that it knows, changed answers, changed logits. Settings of the images: --data.root, …"""


def doctor(words: list[str]) -> None:
    parser = Parser(prog="vit doctor", description=_DESCRIPTION)
    parser.add_argument("model", metavar="MODEL", help="a run, timm:NAME, torchvision:NAME or hf:NAME")
    parser.add_argument("--data", help="a data set's name or a folder, of images or of classes; default: the run's own")
    parser.add_argument(
        "--images", type=int, default=256, help="about so many, of each class at least one (default: %(default)s)"
    )
    parser.add_argument("--select", choices=("best", "last"), default="best", help="checkpoint of a run of ours")
    parser.add_argument("--random_weights", action="store_true", help="build the library's model without weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    known, overrides = parser.parse_known_args(words)
    check_file("--output", known.output)
    from vit.evaluation.doctor import DoctorRequest, examine
    from vit.runs import write_json

    diagnosis = examine(
        DoctorRequest(
            model=known.model,
            data=known.data,
            overrides=overrides,
            num_images=known.images,
            select=known.select,
            random_weights=known.random_weights,
            device=known.device,
        )
    )
    print(diagnosis.table())
    if known.output:
        known.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(known.output, diagnosis.facts())
