"""All supported layouts, and detection of the layout of a file."""

from __future__ import annotations

import re

from torch import Tensor

from vit.config import nearest
from vit.weights import facebook, huggingface, resnet
from vit.weights.layout import Layout, Tensors, strip_prefixes
from vit.weights.npz import BIG_VISION, NPZ
from vit.weights.open_clip import OPEN_CLIP
from vit.weights.timm import TIMM
from vit.weights.torchvision import TORCHVISION

LAYOUTS: tuple[Layout, ...] = (
    *facebook.LAYOUTS,  # before timm's, whose names they share but for a few
    *(TIMM, TORCHVISION, NPZ, BIG_VISION, OPEN_CLIP),
    *huggingface.LAYOUTS,
    *resnet.LAYOUTS,
)
UNSUPPORTED = {
    r".*relative_position_(bias_table|index)|.*\.rel_pos(\..*|_[hw])": "relative position biases",
    r"patch_embed\.backbone\..*|conv_root/.*|block1/.*": "a hybrid's convolutional stem",
    r"blocks\.\d+\.(attns|ffns)\..*": "several branches in parallel in one block",
    r"blocks\.\d+\.(in_proj|in_norm|mlp_out_proj)\..*": "attention and feed-forward in parallel",
    r"blocks\.\d+\.attn\.lambda_.*": "differential attention",
    r"(.*\.)?rope(_embed)?\..*": "rotary positions",
    r"blocks\.\d+\.attn\.[qkv]_(bias|proj\..*)": "EVA's blocks: queries, keys and values apart",
    r"blocks\.\d+\.attn\.proj_[lw]\..*": "talking heads",
    r"blocks\.\d+\.attn\.gating_param": "gated positional attention",
    r"(blocks\.\d+\.(attn|mlp)\.norm|patch_embed\.norm)\..*": "norms inside attention, feed-forward or embedding",
    r"Transformer/encoderblock/.*": "all layers stacked in one array",
}
"""Regular expression for names of tensors → the unsupported part of a model that they belong to."""


def find_layout(tensors: Tensors) -> Layout | None:
    """Find the layout of the tensors' names; None if no layout matches."""
    return next((layout for layout in LAYOUTS if layout.recognizes(strip_prefixes(layout, tensors))), None)


def get_layout(name: str) -> Layout:
    """Find a layout by its name. ValueError if there is none."""
    by_name = {layout.name: layout for layout in LAYOUTS}
    if name not in by_name:
        raise ValueError(f"--to: there is no layout {name!r}; {nearest(name, list(by_name))}")
    return by_name[name]


def refuse_unsupported(tensors: dict[str, Tensor], name: str) -> None:
    """Raise ValueError naming a part that our Vision Transformer does not support."""
    for pattern, what in UNSUPPORTED.items():
        found = next((key for key in tensors if re.fullmatch(pattern, key)), None)
        if found:
            raise ValueError(f"model.pretrained: {name} is not supported: it has {what} ({found})")
