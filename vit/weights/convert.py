"""A model's weights written in another library's layout, and the proof: that library's own model gives the same logits.

Owns `vit convert`. Does not know where a model came from.
"""

from __future__ import annotations

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
from vit.weights.sources import Source

TARGETS = ("timm", "torchvision", "hf", "npz")
SUFFIXES = {"timm": (".safetensors", ".pth", ".pt", ".bin"), "torchvision": (".safetensors", ".pth", ".pt", ".bin")}
"""What a target's files may end in; `.npz` for npz, and for hf a folder is written."""
NUM_IMAGES = 2


@dataclass(frozen=True)
class Conversion:
    """Tensors under another library's names, and which layout they are in."""

    model: Classifier
    layout: Layout
    tensors: dict[str, Tensor]

    def write(self, path: Path) -> None:
        """A file, or for Hugging Face a folder with `config.json`. ValueError for a suffix that the library lacks."""
        if self.layout.name.startswith("hf"):
            write_folder(path, _config(self.model), self.model.state_dict())
            return
        allowed = SUFFIXES.get(self.layout.name, (".npz",))
        check(path.suffix in allowed, "--output", str(path), f"its suffix must be one of {', '.join(allowed)}")
        write_tensors(path, self.tensors)


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


def verify(conversion: Conversion, source: Source | None = None) -> list[str]:
    """What was compared, a line each: with the library's own model, the way back, and the source's own model.

    ValueError where a library has no such model, or is not there to ask.
    """
    config = _config(conversion.model)
    lines = []
    if source is not None and source.layout is not None and config == source.config:
        theirs = kept(source.layout, source.tensors)
        lines.append(_say(f"source ({source.layout.name})", difference(conversion.model, source.layout, theirs)))
    lines.append(_say(conversion.layout.name, difference(conversion.model, conversion.layout, conversion.tensors)))
    exact = is_round_trip_exact(conversion.layout, conversion.tensors, config)
    lines.append(f"round trip: {'bitwise' if exact else 'NOT bitwise'}")
    return lines


@torch.no_grad()
def perturb(model: Classifier) -> None:
    """Random numbers on every parameter, so that none keeps a value (0, 1) that hides a wrong name."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def _say(what: str, largest: float) -> str:
    return f"{what}: largest relative difference of logits on {NUM_IMAGES} random images {largest:.1e}"


@torch.inference_mode()
def difference(model: Classifier, layout: Layout, theirs: Tensors) -> float:
    """Largest difference between our logits and the library's own model's, relative to their largest magnitude."""
    config = _config(model)
    forward = _peer(layout, config, theirs)
    images = torch.randn(NUM_IMAGES, 3, *config.image_size, generator=torch.Generator().manual_seed(0))
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
