"""The tokens of the plain Vision Transformers of torchvision and transformers: their blocks, and the final norm.

timm's models, like ours, have methods that give tokens (`forward_features`, `forward_intermediates`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

BLOCKS = (
    *("EncoderBlock", "ViTLayer", "DeiTLayer", "Dinov2Layer", "Dinov2WithRegistersLayer", "DINOv3ViTLayer"),
    *("CLIPEncoderLayer", "SiglipEncoderLayer", "Siglip2EncoderLayer", "Aimv2EncoderLayer", "ViTMAELayer"),
    *("ViTMSNLayer", "IJepaLayer", "BeitLayer", "Data2VecVisionLayer", "FlavaLayer", "ChineseCLIPVisionLayer"),
    *("AltCLIPEncoderLayer", "MetaClip2EncoderLayer", "BlipEncoderLayer", "Blip2EncoderLayer"),
    *("InstructBlipEncoderLayer", "OwlViTEncoderLayer", "Owlv2EncoderLayer"),
)
"""Classes of blocks whose tokens are the prefix and then the patches, row by row."""
FINAL_NORMS = ("ln", "norm", "layernorm", "post_layernorm", "rms_norm")
"""Names of the norm after the blocks, in the module that holds their list or in one around it."""
CLASS_TOKENS = ("class_token", "cls_token", "class_embedding")
"""Endings of a class token's name."""


@dataclass(frozen=True, eq=False)
class LibraryTokens:
    """Where a model of a library computes its tokens."""

    blocks: Sequence[nn.Module]
    norm: nn.Module
    """The final one; `nn.Identity` where a model has none for its tokens."""
    patch_size: tuple[int, int]
    has_class_token: bool

    def read(self, forward: Callable[[], Any], images: Tensor, count: int) -> tuple[list[Tensor], int]:
        """`b n c` after each of the last `count` blocks and the final norm, computed by `forward` on `images`, and the
        number of tokens before the patches.
        """
        found: list[Tensor] = []
        last = self.blocks[-count:]
        hooks = [block.register_forward_hook(lambda *call: found.append(_first(call[2]))) for block in last]
        try:
            forward()
        finally:
            for hook in hooks:
                hook.remove()
        height, width = (side // step for side, step in zip(images.shape[2:], self.patch_size, strict=True))
        return [self.norm(tokens) for tokens in found], found[-1].shape[1] - height * width


def library_tokens(model: nn.Module) -> LibraryTokens | None:
    """Where the tokens are computed; None for a model without blocks of `BLOCKS`."""
    for name, blocks in model.named_modules():
        is_list = isinstance(blocks, nn.ModuleList | nn.Sequential) and len(blocks) > 0
        if is_list and type(blocks[0]).__name__ in BLOCKS:
            found = list(blocks)
            return LibraryTokens(found, _final_norm(model, name), _patch_size(model), has_class_token(model))
    return None


def _final_norm(model: nn.Module, blocks: str) -> nn.Module:
    owner = blocks
    while owner:
        owner = owner.rpartition(".")[0]
        module = model.get_submodule(owner)
        norm = next((norm for name in FINAL_NORMS if isinstance(norm := getattr(module, name, None), nn.Module)), None)
        if norm is not None:
            return norm
    return nn.Identity()


def _patch_size(model: Any) -> tuple[int, int]:
    """torchvision keeps it in the model, transformers in its configuration."""
    size = getattr(model, "patch_size", None) or model.config.patch_size
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def has_class_token(model: nn.Module) -> bool:
    """Whether the first token is a class token. A pooling head's query (AIMv2's) is none, whatever its name."""
    return any(name.endswith(CLASS_TOKENS) and "head." not in name for name, _ in model.named_parameters())


def _first(output: Any) -> Tensor:
    tokens: Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return tokens
