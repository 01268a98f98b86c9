"""All layouts that are understood, and which of them a file's names are. What is not supported is said by name."""

from __future__ import annotations

import re

from torch import Tensor

from vit.config import nearest
from vit.weights import facebook, huggingface
from vit.weights.layout import Layout, Tensors, unwrapped
from vit.weights.npz import BIG_VISION, NPZ
from vit.weights.open_clip import OPEN_CLIP
from vit.weights.timm import TIMM
from vit.weights.torchvision import TORCHVISION

LAYOUTS: tuple[Layout, ...] = (
    *facebook.LAYOUTS,  # before timm's, whose names they share but for a few
    *(TIMM, TORCHVISION, NPZ, BIG_VISION, OPEN_CLIP),
    *huggingface.LAYOUTS,
)
UNSUPPORTED = {
    r".*relative_position_(bias_table|index)|.*\.rel_pos(\..*|_[hw])": "relative position biases (of windows or not)",
    r"patch_embed\.backbone\..*|conv_root/.*|block1/.*": "a hybrid's convolutional stem",
    r"blocks\.\d+\.(attns|ffns)\..*": "several branches in parallel in one block",
    r"blocks\.\d+\.(in_proj|in_norm|mlp_out_proj)\..*": "attention and feed-forward in parallel",
    r"blocks\.\d+\.attn\.lambda_.*": "differential attention",
    r"blocks\.\d+\.attn\.[qkv]_(bias|proj\..*)|rope\..*|.*\.rope\..*": "EVA's blocks or other rotary positions",
    r"(blocks\.\d+\.(attn|mlp)\.norm|patch_embed\.norm)\..*": "norms inside attention, feed-forward or embedding",
    r"Transformer/encoderblock/.*": "all layers stacked in one array",
}
"""Regular expression of names → what such a tensor belongs to."""


def find_layout(tensors: Tensors) -> Layout | None:
    """The layout that the names are in; None where they are in none."""
    return next((layout for layout in LAYOUTS if layout.recognizes(unwrapped(layout, tensors))), None)


def layout_named(name: str) -> Layout:
    """ValueError where there is none of that name."""
    found = next((layout for layout in LAYOUTS if layout.name == name), None)
    if found is None:
        raise ValueError(f"--to: there is no layout {name!r}; {nearest(name, [layout.name for layout in LAYOUTS])}")
    return found


def refuse_unsupported(tensors: dict[str, Tensor], name: str) -> None:
    """ValueError naming a part that our Vision Transformer does not compute."""
    for pattern, what in UNSUPPORTED.items():
        found = next((key for key in tensors if re.fullmatch(pattern, key)), None)
        if found:
            raise ValueError(f"model.pretrained: {name} is not supported: it has {what} ({found})")
