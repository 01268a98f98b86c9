"""A model's weights written in another library's layout, and the proof: that library's own model gives the same logits.

Owns `vit convert`. Does not know where a model came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vit.config import ViTConfig, check
from vit.models import Classifier
from vit.weights.files import write_tensors
from vit.weights.huggingface import to_huggingface, write_folder
from vit.weights.layout import Forward, Layout, Tensors, apply, invert, kept
from vit.weights.layouts import find_layout, layout_named
from vit.weights.report import LoadReport
from vit.weights.sources import Source

TARGETS = ("timm", "torchvision", "hf", "npz")
SUFFIXES = {"timm": (".safetensors", ".pth", ".pt", ".bin"), "torchvision": (".safetensors", ".pth", ".pt", ".bin")}
"""What a target's files may end in; `.npz` for npz, and for hf a folder is written."""
NUM_IMAGES = 2
LARGEST = 1e-4
"""Largest relative difference of logits that rounding explains."""


@dataclass(frozen=True)
class Conversion:
    """Tensors under another library's names, and which layout they are in."""

    model: Classifier
    layout: Layout
    tensors: dict[str, Tensor]

    def write(self, path: Path) -> None:
        """A file, or for Hugging Face a folder with `config.json`. ValueError as of `check_output`."""
        target = "hf" if self.layout.name.startswith("hf") else self.layout.name
        check_output(target, path)
        if target == "hf":
            write_folder(path, _config(self.model), self.model.state_dict())
        else:
            write_tensors(path, self.tensors)


def check_output(target: str, path: Path) -> None:
    """ValueError for a suffix that the target's files do not have, and for hf where a file is in the folder's place."""
    if target == "hf":
        check(not path.is_file(), "--output", str(path), "hf writes a folder, and there is a file of that name")
        return
    allowed = SUFFIXES.get(target, (".npz",))
    check(path.suffix in allowed, "--output", str(path), f"its suffix must be one of {', '.join(allowed)}")


def convert_model(model: Classifier, target: str) -> Conversion:
    """The model in the layout `target`. ValueError naming what the library has no place for."""
    config = _config(model)
    tensors = model.state_dict()
    if target == "hf":
        theirs = to_huggingface(config, tensors)[1]
        layout = find_layout(theirs)
        assert layout is not None
        return Conversion(model, layout, theirs)
    layout = layout_named(target)
    inverted = invert(layout, tensors, config)
    if inverted.left_over:
        shown = ", ".join(inverted.left_over[:4])
        raise ValueError(f"--to: {target} has no place for {shown} of this model")
    return Conversion(model, layout, inverted.tensors)


def verify(conversion: Conversion, source: Source | None = None, report: LoadReport | None = None) -> Iterator[str]:
    """What was compared, a line each: the source's own model, the library's own, and the way back.

    `report`: of the loading of `source`. ValueError where the library has no such model or is not there to ask, where
    logits differ by more than `LARGEST` or are not numbers, and where the way back is not bitwise.
    """
    model, layout = conversion.model, conversion.layout
    if source is not None:
        yield _compare_source(model, source, report)
    yield _compare(layout.name, model, _peer(layout, _config(model), conversion.tensors))
    if not is_round_trip_exact(layout, conversion.tensors, _config(model)):
        raise ValueError(f"--verify: the way back from {layout.name} is not bitwise; nothing is written")
    yield "round trip: bitwise"


def _compare_source(model: Classifier, source: Source, report: LoadReport | None) -> str:
    """With the source library's model of our architecture, whoever named it; or why not."""
    if source.layout is None:
        return "source not compared: its tensors are in no other library's layout"
    if report is not None and report.resized:
        return "source not compared: its positions were resized to the model's grid"
    try:
        peer = _peer(source.layout, _config(model), kept(source.layout, source.tensors))
    except (ValueError, RuntimeError) as error:  # RuntimeError: torch's, of tensors that do not fit
        return f"source not compared: {' '.join(str(error).removeprefix('--verify: ').split())[:200]}"
    return _compare(f"source ({source.layout.name})", model, peer)


@torch.no_grad()
def perturb(model: Classifier, *, scale: float = 0.05) -> None:
    """Random numbers on every parameter, so that none keeps a value (0, 1) that hides a wrong name."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)


def _compare(what: str, model: Classifier, forward: Forward) -> str:
    largest = _difference(model, forward)
    words = f"{what}: largest relative difference of logits on {NUM_IMAGES} random images {largest:.1e}"
    if not largest <= LARGEST:  # NaN too
        raise ValueError(f"--verify: {words}, more than rounding's {LARGEST:.0e}; nothing is written")
    return words


def difference(model: Classifier, layout: Layout, theirs: Tensors) -> float:
    """Largest difference between our logits and the library's own model's, relative to their largest magnitude."""
    return _difference(model, _peer(layout, _config(model), theirs))


@torch.inference_mode()
def _difference(model: Classifier, forward: Forward) -> float:
    images = torch.randn(NUM_IMAGES, 3, *_config(model).image_size, generator=torch.Generator().manual_seed(0))
    ours, expected = model.eval()(images), forward(images)
    return float((ours - expected).abs().max() / expected.abs().max())


def _peer(layout: Layout, config: ViTConfig, theirs: Tensors) -> Forward:
    if layout.peer is None:
        raise ValueError(f"--verify: the layout {layout.name} has no model to compare with")
    try:
        return layout.peer(config, theirs)
    except ImportError as error:
        raise ValueError(f"--verify: {error.name} is not installed") from error


def is_round_trip_exact(layout: Layout, theirs: Tensors, config: ViTConfig) -> bool:
    """Whether theirs → ours → theirs gives every name and bit back."""
    theirs = kept(layout, theirs)
    back = invert(layout, apply(layout, theirs, config).tensors, config).tensors
    return back.keys() == theirs.keys() and all(torch.equal(back[name], theirs[name]) for name in theirs)


def _config(model: Classifier) -> ViTConfig:
    if not isinstance(model.config, ViTConfig):
        raise ValueError("vit convert: a ResNet's tensors have the same names in timm, torchvision and here")
    return model.config
