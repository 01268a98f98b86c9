"""`vit convert`: a model's weights in another library's layout. Knows no tensors."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from vit.cli.parsing import Parser, check_folder

TARGETS = ("timm", "torchvision", "hf", "npz")


def convert(words: list[str]) -> None:
    parser = Parser(prog="vit convert", description="Write a model's weights as another library names them.")
    parser.add_argument("source", metavar="SOURCE", help="a run folder, a file, a folder, timm:NAME, torchvision:NAME")
    parser.add_argument("--to", choices=TARGETS, required=True)
    parser.add_argument("--output", type=Path, help="the file to write; hf: the folder")
    parser.add_argument("--name", help="the architecture (a model's name), where the file does not tell it")
    parser.add_argument("--random", action="store_true", help="SOURCE is a model's name; its weights are random")
    parser.add_argument("--verify", action="store_true", help="compare with the library's own model on random images")
    known = parser.parse_args(words)
    if not (known.output or known.verify):
        raise ValueError("vit convert: nothing to do; give --output, --verify or both")
    if known.random and known.name:
        raise ValueError("--name: it has no effect with --random, where SOURCE is the name")
    check_folder("--output", known.output and known.output.parent)
    for line in _convert(known):
        print(line)


def _convert(known: argparse.Namespace) -> Iterator[str]:
    from vit.config import ModelConfig
    from vit.hub import load_model
    from vit.runs import holds_checkpoints
    from vit.weights.convert import check_output, convert_model, perturb, verify
    from vit.weights.sources import open_source

    if known.output:
        check_output(known.to, known.output)
    is_run = not known.random and holds_checkpoints(Path(known.source))
    if is_run and known.name:
        raise ValueError(
            f"--name: {known.name!r} is not valid: {known.source!r} is a run, which is converted as it was trained, "
            "with its own head; leave --name out"
        )
    if known.random:
        loaded = load_model(ModelConfig(name=known.source))
        perturb(loaded.model)
    else:
        loaded = load_model(ModelConfig(name=known.name, pretrained=known.source))
    if loaded.report:
        yield loaded.report.summary()
    conversion = convert_model(loaded.model, known.to)
    yield f"{known.to}: {len(conversion.tensors)} tensors, made of {len(loaded.model.state_dict())} of ours"
    if known.verify:
        ours = known.random or is_run
        yield from verify(conversion, None if ours else open_source(known.source), loaded.report)
    if known.output:
        conversion.write(known.output)
        yield f"written: {known.output}"
