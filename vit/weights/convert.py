"""`vit convert`: a model's weights in another library's layout, verified to give the same logits in its own model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vit.config import ResNetConfig, ViTConfig, check, check_arguments
from vit.libraries import NoCounterpart, library_and_name
from vit.libraries.timm_eva import is_eva
from vit.models import Classifier
from vit.weights import eva
from vit.weights.aimv2 import TIMM_AIMV2, is_aimv2
from vit.weights.beit import BEIT
from vit.weights.files import write_tensors
from vit.weights.huggingface import HowUsed, to_huggingface, write_folder
from vit.weights.layout import Architecture, Forward, Layout, Tensors, apply_rules, invert_rules, without_dropped
from vit.weights.layouts import find_layout, get_layout
from vit.weights.report import LoadReport
from vit.weights.sources import Source
from vit.weights.untold import difference_untold

TARGETS = ("timm", "torchvision", "hf", "npz")
SUFFIXES = {"timm": (".safetensors", ".pth", ".pt", ".bin"), "torchvision": (".safetensors", ".pth", ".pt", ".bin")}
"""Suffixes of a target's files; npz writes `.npz`, and hf a folder."""
NUM_IMAGES = 2
MAX_DIFFERENCE = 1e-4
"""The largest relative difference of logits attributed to rounding."""


@dataclass(frozen=True)
class Conversion:
    """A model's tensors under another library's names."""

    model: nn.Module
    layout: Layout
    tensors: dict[str, Tensor]

    @property
    def note(self) -> str:
        """A line about what the file does not say; empty if it says everything."""
        config = _config(self.model)
        if isinstance(config, ResNetConfig):
            return ""
        return "; ".join(filter(None, [self._read_otherwise(config), self._resized_otherwise(config)]))

    def _read_otherwise(self, config: ViTConfig) -> str:
        """Settings that differ where the architecture is read from the tensors, which do not tell all of it."""
        told = self.layout.config(self.tensors)
        if not isinstance(told, ViTConfig):
            return ""
        pairs = difference_untold(told, config).items()
        found = [f"model.{name} {theirs} in place of {ours}" for name, (theirs, ours) in pairs]
        return f"opened from this file alone it has {' and '.join(found)}" if found else ""

    def _resized_otherwise(self, config: ViTConfig) -> str:
        theirs = self.layout.resize_of(config, self.tensors) if config.resizes_positions else config.position_resize
        if config.position_resize == theirs:
            return ""
        return f"at other image sizes positions are resized {theirs} there and {config.position_resize} here"

    def write(self, path: Path, use: HowUsed | None = None) -> None:
        """Write a file, or for Hugging Face a folder with `config.json` and what `use` says.

        ValueError as in `check_output`.
        """
        target = re.split("[ -]", self.layout.name)[0]  # of "timm ResNet", "timm-eva", "hf-vit"
        check_output(target, path)
        config = _config(self.model)
        if target == "hf" and isinstance(config, ViTConfig):
            write_folder(path, config, self.model.state_dict(), use)
        else:
            write_tensors(path, self.tensors)


def check_output(target: str, path: Path, source: str = "") -> None:
    """Raise ValueError for a suffix that the target does not use, for the source, and, for hf, unless the output is a
    folder without files, which may be made.
    """
    if target == "hf":
        check(not path.is_file(), "--output", str(path), "hf writes a folder, and a file of that name exists")
        empty = not path.is_dir() or not any(path.iterdir())
        check(empty, "--output", str(path), "it holds files already; name a new folder")
        return
    place = Path(library_and_name(source)[1] or source)
    is_source = bool(source) and path.exists() and path.resolve() in (place.resolve(), *place.resolve().glob("*"))
    check(
        not is_source, "--output", str(path), "it is the model that is converted, or in its folder; name another file"
    )
    allowed = SUFFIXES.get(target, (".npz",))
    check(path.suffix in allowed, "--output", str(path), f"its suffix must be one of {', '.join(allowed)}")


@check_arguments
def convert_model(model: nn.Module, target: str) -> Conversion:
    """Convert a model to the layout `target`. ValueError naming a setting or tensors without a counterpart there."""
    config = _config(model)
    tensors = model.state_dict()
    if target == "hf" and isinstance(config, ViTConfig):
        theirs = to_huggingface(config, tensors)[1]
        layout = find_layout(theirs)
        assert layout is not None
        return Conversion(model, layout, theirs)
    layout = _layout_to_write(target, config, tensors)
    layout.check_config(config)
    inverted = invert_rules(layout, tensors, config)
    if inverted.unexpected:
        shown = ", ".join(inverted.unexpected[:4])
        raise ValueError(f"--to: {target} has no counterpart for {shown} of this model")
    return Conversion(model, layout, inverted.tensors)


def _layout_to_write(target: str, config: Architecture, tensors: Tensors) -> Layout:
    if not isinstance(config, ViTConfig):
        kind, targets = ("ResNet", ("timm", "torchvision")) if config.version == 1 else ("ResNetV2", ("timm", "npz"))
        check(target in targets, "--to", target, f"a {kind} is written for {' or '.join(targets)}")
        return get_layout(f"{target} {kind}")
    if target == "timm" and is_aimv2(config):
        return TIMM_AIMV2
    if target == "timm" and config.positions == "relative":
        return BEIT
    return eva.layout_to_write(config, tensors) if target == "timm" and is_eva(config) else get_layout(target)


def verify_conversion(
    conversion: Conversion, source: Source | None = None, report: LoadReport | None = None
) -> Iterator[str]:
    """Compare with the source's model and the target library's, check the round trip, and yield a line about each.

    `report`: from loading `source`. ValueError if the library has no such model or is not installed, if logits differ
    by more than `MAX_DIFFERENCE` or are not finite, and if the round trip is not bitwise.
    """
    model, layout = conversion.model, conversion.layout
    if source is not None:
        yield _compare_source(model, source, report)
    yield _compare(layout.name, model, _reference(layout, _config(model), conversion.tensors))
    if not is_round_trip_exact(layout, conversion.tensors, _config(model)):
        raise ValueError(f"--verify: the round trip through {layout.name} is not bitwise; nothing is written")
    yield "round trip: bitwise"


def _compare_source(model: nn.Module, source: Source, report: LoadReport | None) -> str:
    """Compare with the source library's own model, or return the reason why that is impossible."""
    if source.layout is None:
        return "source not compared: its tensors are in no other library's layout"
    if report is not None and report.resized:
        return "source not compared: its positions were resized to the model's grid"
    try:
        reference = _reference(source.layout, _config(model), without_dropped(source.layout, source.tensors))
    except (NoCounterpart, RuntimeError) as error:  # RuntimeError: raised by torch for tensors that do not fit
        return f"source not compared: {' '.join(str(error).removeprefix('--verify: ').split())[:200]}"
    return _compare(f"source ({source.layout.name})", model, reference)


def _compare(what: str, model: nn.Module, forward: Forward) -> str:
    largest = _difference(model, forward)
    result = f"{what}: largest relative difference of logits on {NUM_IMAGES} random images {largest:.1e}"
    if not largest <= MAX_DIFFERENCE:  # also refuses NaN
        raise ValueError(f"--verify: {result}, more than rounding's {MAX_DIFFERENCE:.0e}; nothing is written")
    return result


def logit_difference(model: nn.Module, layout: Layout, theirs: Tensors) -> float:
    """Compute the largest difference of logits to the library's own model, relative to their largest magnitude."""
    return _difference(model, _reference(layout, _config(model), theirs))


@torch.inference_mode()
def _difference(model: nn.Module, forward: Forward) -> float:
    config = _config(model)
    shape = NUM_IMAGES, config.in_channels, *config.image_size
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ours, expected = model.eval()(images), forward(images)
    return float((ours - expected).abs().max() / expected.abs().max())


def _reference(layout: Layout, config: Architecture, theirs: Tensors) -> Forward:
    if layout.reference is None:
        raise NoCounterpart(f"--verify: the layout {layout.name} has no model to compare with")
    try:
        return layout.reference(config, theirs)
    except ImportError as error:
        raise NoCounterpart(f"--verify: {error.name} is not installed") from error


def is_round_trip_exact(layout: Layout, theirs: Tensors, config: Architecture) -> bool:
    """Check that theirs → ours → theirs restores every name and bit."""
    theirs = without_dropped(layout, theirs)
    back = invert_rules(layout, apply_rules(layout, theirs, config).tensors, config).tensors
    return back.keys() == theirs.keys() and all(torch.equal(back[name], theirs[name]) for name in theirs)


def _config(model: nn.Module) -> Architecture:
    if isinstance(model, Classifier):
        return model.config
    raise ValueError(f"model: {type(model).__name__} is no image classifier of this package")
