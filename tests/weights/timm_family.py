"""Every plain Vision Transformer that timm lists: built for real, compared on the meta device, or refused by name."""

from __future__ import annotations

import timm
import torch

from tests.weights.proof import Row, compare_names, filled, prove
from vit.libraries.timm import FAMILIES, config_of
from vit.weights.layouts import find_layout

BUILT_BELOW = {100: 128_000_000, 200: 90_000_000, 330: 64_000_000}
"""Tokens → parameters under which a model with fewer tokens is built whole."""
CUT_BELOW = 1100
"""Tokens under which any other is built with two of its blocks."""


def names() -> list[str]:
    return [name for name in timm.list_models() if name.startswith(FAMILIES)]


def examine(name: str) -> list[Row] | str:
    """Rows, or the message that refuses the model."""
    with torch.device("meta"):
        theirs = timm.create_model(name)
        try:
            config = config_of(theirs, name)
        except ValueError as refusal:
            return str(refusal)
    count = sum(parameter.numel() for parameter in theirs.parameters())
    layout = find_layout(theirs.state_dict(), config)
    assert layout is not None
    tokens = config.grid_size[0] * config.grid_size[1] + config.num_prefix_tokens
    if any(tokens < above and count < limit for above, limit in BUILT_BELOW.items()):
        return [prove(layout, name, config, filled(theirs).state_dict())]
    rows = [compare_names(layout, name, config, theirs.state_dict())]
    if tokens < CUT_BELOW:
        with torch.device("meta"):
            theirs = timm.create_model(name, depth=2)
        rows.append(prove(layout, name, config_of(theirs, name), filled(theirs).state_dict(), "2 blocks"))
    return rows
