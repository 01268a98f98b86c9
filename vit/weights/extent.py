"""Whether a foreign configuration can be that of the tensors beside it, before a model of its size is built."""

from __future__ import annotations

from vit.config import BertConfig, ResNetConfig, ViTConfig
from vit.models.size import least_parameters
from vit.weights.layout import Tensors

_MOST_TIMES = 2
"""How many times the file's numbers a model may have at least; biases, norms and prefix tokens are not counted."""


def check_extent(config: ViTConfig | ResNetConfig | BertConfig, tensors: Tensors, where: str) -> None:
    """ValueError for a model that has far more parameters than the tensors have numbers.

    The loader says of any other model that does not fit which tensor it is; but that takes a model, whose memory a
    damaged configuration may not have.
    """
    if isinstance(config, ResNetConfig):  # its stages are bounded by its name
        return
    needed = _least_parameters(config)
    found = sum(tensor.numel() for tensor in tensors.values())
    if needed > _MOST_TIMES * found:
        raise ValueError(
            f"model.pretrained: {where}: it describes a model of at least {needed:,} parameters "
            f"(width {config.width}, depth {config.depth}), and the weights beside it have {found:,}"
        )


def _least_parameters(config: ViTConfig | BertConfig) -> int:
    """The matrices of the blocks, which are most of a Transformer, and the tables and layers at its ends."""
    if isinstance(config, BertConfig):
        width = config.width
        ends = width * (config.vocabulary_size + config.max_length + config.num_token_types)
        return ends + config.depth * (4 * width**2 + 2 * width * config.hidden_width)
    return least_parameters(config)
