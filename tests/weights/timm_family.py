"""Every plain Vision Transformer that timm lists: built for real, compared on the meta device, or refused by name."""

from __future__ import annotations

import timm
import torch

from tests.weights.proof import Row, compare_names, filled, prove
from vit.weights.timm import TIMM
from vit.weights.timm_models import FAMILIES, config_of

BUILT_BELOW = 64_000_000
"""Parameters of the models that are built for real; /32 ones of twice that, whose images have few patches."""
TOKENS_BELOW = 330


def names() -> list[str]:
    return [name for name in timm.list_models() if name.startswith(FAMILIES)]


def examine(name: str, *, for_real: bool = True) -> Row | str:
    """A row, or the line that refuses the model."""
    with torch.device("meta"):
        theirs = timm.create_model(name)
        try:
            config = config_of(theirs, name)
        except ValueError as refusal:
            return str(refusal)
    count = sum(parameter.numel() for parameter in theirs.parameters())
    tokens = config.grid_size[0] * config.grid_size[1] + config.num_prefix_tokens
    limit = BUILT_BELOW * (2 if tokens < 100 else 1)
    if for_real and count < limit and tokens < TOKENS_BELOW:
        return prove(TIMM, name, config, filled(theirs).state_dict())
    return compare_names(TIMM, name, config, theirs.state_dict())
