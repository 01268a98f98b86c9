"""All supported layouts, and detection of the layout of a file."""

from __future__ import annotations

import re

from torch import Tensor

from vit.config import ViTConfig, nearest
from vit.weights import eva, facebook, huggingface, resnet
from vit.weights.layout import Architecture, Layout, Tensors, strip_prefixes
from vit.weights.npz import BIG_VISION, NPZ
from vit.weights.open_clip import OPEN_CLIP
from vit.weights.timm import TIMM
from vit.weights.torchvision import TORCHVISION

LAYOUTS: tuple[Layout, ...] = (
    *facebook.LAYOUTS,  # before timm's, whose names they share but for a few
    *(TIMM, *eva.LAYOUTS, TORCHVISION, NPZ, BIG_VISION, OPEN_CLIP),
    *huggingface.LAYOUTS,
    *resnet.LAYOUTS,
)
UNSUPPORTED = {
    r".*relative_position_(bias_table|index)|.*\.rel_pos(\..*|_[hw])": "relative position biases",
    r"patch_embed\.backbone\..*|conv_root/.*|block1/.*": "a hybrid's convolutional stem",
    r"blocks\.\d+\.(attns|ffns)\..*": "several branches in parallel in one block",
    r"blocks\.\d+\.(in_proj|in_norm|mlp_out_proj)\..*": "attention and feed-forward in parallel",
    r"blocks\.\d+\.attn\.lambda_.*": "differential attention",
    r"blocks\.\d+\.attn\.proj_[lw]\..*": "talking heads",
    r"blocks\.\d+\.attn\.gating_param": "gated positional attention",
    r"rope_embed\..*": "the rotary positions of DINOv3's original files (timm's and transformers' are taken)",
    r"patch_embed\.norm\..*": "a norm inside the patch embedding",
    r"Transformer/encoderblock/.*": "all layers stacked in one array",
}
"""Regular expression for names of tensors → the unsupported part of a model that they belong to."""


def find_layout(tensors: Tensors, config: Architecture | None = None) -> Layout | None:
    """Find the layout of the tensors' names, and of the architecture if it is known; None if no layout matches."""
    for layout in LAYOUTS:
        stripped = strip_prefixes(layout, tensors)
        if layout.recognizes(stripped) and (not isinstance(config, ViTConfig) or layout.fits(config, stripped)):
            return layout
    return None


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
