"""Comparison of another library's model with ours, with the same weights: loaded, compared, written back.

Used by the tests and by `python -m tests.weights.layouts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vit.config import ViTConfig
from vit.models import build_model
from vit.weights.convert import is_round_trip_exact, logit_difference
from vit.weights.layout import Architecture, Layout, Tensors, apply_rules, without_dropped
from vit.weights.loader import load_weights


@dataclass(frozen=True)
class Row:
    """One model of one layout."""

    layout: str
    model: str
    how: str
    """`whole`, `2 blocks`, or `meta`: names and shapes only."""
    loaded: int
    present: int
    difference: float | None
    exact: bool | None


def filled(model: nn.Module) -> nn.Module:
    """A model built on the meta device, with small random numbers everywhere, norms around 1."""
    return fill(model.to_empty(device="cpu"))


def fill(model: nn.Module) -> nn.Module:
    """Give a model small random numbers everywhere, norms around 1; tables of positions that are computed stay."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.3 if parameter.dim() < 2 else 1.7 / max(parameter[0].numel(), 1) ** 0.5
            parameter.uniform_(-spread, spread, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1)
        for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
            norm.weight.add_(1)
            assert norm.running_mean is not None
            assert norm.running_var is not None
            assert norm.num_batches_tracked is not None
            norm.running_mean.uniform_(-0.3, 0.3, generator=generator)
            norm.running_var.uniform_(0.5, 1.5, generator=generator)
            norm.num_batches_tracked.fill_(7)
    return model.eval()


def prove(layout: Layout, name: str, config: Architecture, theirs: Tensors, how: str = "whole") -> Row:
    """Load their tensors into our model, and compare it with the library's own model of `config`."""
    with torch.device("meta"):
        ours = build_model(config)
    ours = ours.to_empty(device="cpu").eval()
    report = load_weights(
        ours, dict(theirs), name, source_grid=config.grid_size if isinstance(config, ViTConfig) else None
    )
    assert report.layout == layout.name, f"{name}: read as {report.layout}, not {layout.name}"
    own = without_dropped(layout, theirs)
    largest = logit_difference(ours, layout, own)
    exact = is_round_trip_exact(layout, theirs, config)
    return Row(layout.name, name, how, len(own), report.num_source, largest, exact)


def compare_names(layout: Layout, name: str, config: Architecture, theirs: Tensors) -> Row:
    """Compare names and shapes alone, on the meta device, for models that do not fit in memory."""
    with torch.device("meta"):
        ours = build_model(config).state_dict()
    applied = apply_rules(layout, theirs, config)
    assert not applied.unexpected, (name, applied.unexpected)
    assert shapes(applied.tensors) == shapes(ours), name
    return Row(layout.name, name, "meta", len(theirs), len(theirs), None, None)


def shapes(tensors: Tensors) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
