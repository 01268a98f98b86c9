"""timm's names for a Vision Transformer's tensors, and ours. A ResNet's are the same in both.

timm (Wightman, github.com/huggingface/pytorch-image-models) keeps one `pos_embed` for prefix tokens and patches; here
they are two tensors, so that the grid can be resized without asking which rows are patches.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from vit.config import ViTConfig

RENAMES: tuple[tuple[str, str], ...] = (
    (r"^patch_embed\.proj\.", "embedding.projection."),
    (r"^cls_token$", "class_token"),
    (r"^dist_token$", "distillation_token"),
    (r"^reg_token$", "register_tokens"),
    (r"^norm_pre\.", "pre_norm."),
    (r"^fc_norm\.", "pool_norm."),
    (r"^head_dist\.", "distillation_head."),
    (r"^attn_pool\.latent$", "attention_pool.probe"),
    (r"^attn_pool\.proj\.", "attention_pool.attention.output."),
    (r"^attn_pool\.norm\.", "attention_pool.norm."),
    (r"^attn_pool\.mlp\.fc1\.", "attention_pool.feedforward.expand."),
    (r"^attn_pool\.mlp\.fc2\.", "attention_pool.feedforward.contract."),
    (r"\.attn\.qkv\.", ".attention.qkv."),
    (r"\.attn\.proj\.", ".attention.output."),
    (r"\.attn\.q_norm\.", ".attention.query_norm."),
    (r"\.attn\.k_norm\.", ".attention.key_norm."),
    (r"\.ls([12])\.gamma$", r".scale\1.gamma"),
    (r"\.mlp\.fc1_g\.", ".feedforward.gate."),
    (r"\.mlp\.fc1_x\.", ".feedforward.expand."),
    (r"\.mlp\.fc1\.", ".feedforward.expand."),
    (r"\.mlp\.fc2\.", ".feedforward.contract."),
)


def is_timm_vit(names: set[str]) -> bool:
    return "patch_embed.proj.weight" in names


def from_timm_vit(source: dict[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """A timm ViT's tensors under our names; positions split into prefix and grid, at the source's own grid.

    ValueError when the number of positions fits neither the patches alone nor patches and prefix.
    """
    renamed = {_rename(name): tensor for name, tensor in source.items() if name != "pos_embed"}
    if "pos_embed" in source:
        renamed |= _split_positions(source["pos_embed"], config)
    return renamed


def _rename(name: str) -> str:
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _split_positions(table: Tensor, config: ViTConfig) -> dict[str, Tensor]:
    num_prefix = int(config.class_token) + int(config.distillation_token)
    if not config.positions_on_prefix or num_prefix == 0:
        return {"positions.grid": table}
    prefix, grid = torch.split(table, [num_prefix, table.shape[1] - num_prefix], dim=1)
    return {"positions.prefix": prefix, "positions.grid": grid}
