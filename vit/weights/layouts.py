"""All supported layouts, and detection of the layout of a file."""

from __future__ import annotations

import re

from torch import Tensor

from vit.config import ViTConfig, nearest
from vit.weights import eva, facebook, huggingface, resnet
from vit.weights.aimv2 import APPLE, TIMM_AIMV2
from vit.weights.beit import BEIT
from vit.weights.layout import Architecture, Layout, Tensors, strip_prefixes
from vit.weights.naflex import NAFLEX
from vit.weights.npz import BIG_VISION, NPZ
from vit.weights.open_clip import OPEN_CLIP
from vit.weights.timm import TIMM
from vit.weights.torchvision import TORCHVISION

LAYOUTS: tuple[Layout, ...] = (
    BEIT,  # before all that share its names: DeiT-III's, timm's
    *facebook.LAYOUTS,  # before timm's, whose names they share but for a few
    *(TIMM_AIMV2, APPLE, NAFLEX),
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


def refuse_unsupported(tensors: dict[str, Tensor], name: str, config: Architecture | None = None) -> None:
    """Raise ValueError naming a part that our Vision Transformer does not support: one that has no place in the layout
    of the tensors' names, and of the architecture if it is known."""
    layout = find_layout(tensors, config)
    for pattern, what in UNSUPPORTED.items():
        keys = (key for key in tensors if re.fullmatch(pattern, key))
        found = next((key for key in keys if layout is None or not layout.has_place_for(key)), None)
        if found:
            raise ValueError(f"model.pretrained: {name} is not supported: it has {what} ({found})")
