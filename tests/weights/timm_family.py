"""Every plain Vision Transformer that timm lists: built for real, compared on the meta device, or refused by name."""

from __future__ import annotations

from typing import Any

import timm
import torch

from tests.weights.proof import Row, compare_names, filled, prove
from vit.libraries.timm import FAMILIES
from vit.libraries.timm_reading import architecture_of, config_of
from vit.models import build_model
from vit.weights.layouts import find_layout
from vit.weights.loader import load_weights

BUILT_BELOW = {100: 128_000_000, 200: 90_000_000, 330: 64_000_000}
"""Tokens → parameters under which a model with fewer tokens is built whole."""
CUT_BELOW = 1100
"""Tokens under which any other is built with two of its blocks."""


PATTERNS = (
    *("vit*", "deit*", "eva*", "beit*", "*dinov3*", "*siglip*", "*clip*", "vit_pe*", "aimv2*", "naflexvit*", "samvit*"),
    "flexivit*",
)
"""Names that the documentation accounts for: each is loaded into ours, computed by timm, or refused."""
LOADED, THEIRS, REFUSED = "loaded", "computed by timm", "refused"


def state_of(name: str) -> tuple[str, str]:
    """One of the three states of a name of timm's, and why it is not loaded: from the model on the meta device."""
    with torch.device("meta"):
        model = timm.create_model(name).eval()
        try:
            architecture_of(model, name)
            return LOADED, ""
        except ValueError as refusal:
            reason = str(refusal).split("it has ")[-1].partition(";")[0]
        images = torch.empty(1, *model.pretrained_cfg["input_size"])
        output = model(images)
    is_answer = isinstance(output, torch.Tensor) and output.shape == (1, model.num_classes or model.num_features)
    return (THEIRS if is_answer else REFUSED), reason


def documented_names() -> list[str]:
    return sorted({name for pattern in PATTERNS for name in timm.list_models(pattern)})


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
        config = config_of(theirs, name)
        rows.append(prove(layout, name, config, filled(theirs).state_dict(), "2 blocks"))
        check_forward(theirs, config, name)
    return rows


def check_forward(theirs: Any, config: Any, name: str) -> None:
    """Our model against timm's own forward pass, for what is read wrongly and has no tensor, as an activation.

    `prove` compares with timm's model of our reading.
    """
    ours = build_model(config).eval()
    load_weights(ours, theirs.state_dict(), name, source_grid=config.grid_size)
    images = torch.randn(1, 3, *config.image_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = theirs(images)
        assert float((ours(images) - expected).abs().max() / expected.abs().max()) < 1e-5, name
