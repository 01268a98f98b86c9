"""timm's names for BEiT and BEiT-2, which Microsoft's files share, and their tables of relative biases.

Bao et al. 2021; Peng et al. 2022. A table has a row for every offset between two patches, and three more: from the
class token, to it, and of it to itself; a column for every head. The architecture must be named.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from vit.config import ViTConfig
from vit.libraries.timm_beit import beit_forward, check_expressible
from vit.weights.eva import FUSED, shared_rules
from vit.weights.layout import MASK_TOKEN, Layout, Rule

PREFIX_ROWS = 3
INDEX = "the rows of a table that pairs of tokens have, which follow from the grid"
PREDICTION = "predicts the visual words of masked patches in pre-training"
"""Reasons for which layouts drop tensors."""
_BOTH = ("positions.table", "positions.prefix_table")
_TABLE = "relative_position_bias_table"


def relative_biases(shared: str, of_block: str) -> tuple[Rule, ...]:
    """Rules for tables under the names `shared` and `of_block` (with `{layers}`): either, or both."""
    names = {"blocks": (of_block,), "shared": (shared,), "both": (shared, of_block)}
    return tuple(
        Rule(_BOTH, theirs, to_ours=_to_ours, to_theirs=_to_theirs, when=_has(kind)) for kind, theirs in names.items()
    )


def _has(kind: str) -> Callable[[ViTConfig], bool]:
    return lambda config: config.positions == "relative" and config.relative_tables == kind


def _to_ours(pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:
    """Tables `e h`, one or more, as `l h dr dc` and `l h 3`. ValueError for one that fits no grid."""
    tables = rearrange(torch.stack(pieces), "l e h -> l h e")
    offsets = tables.shape[2] - PREFIX_ROWS
    own = [2 * side - 1 for side in config.grid_size]
    side = math.isqrt(offsets)
    if offsets != own[0] * own[1] and side * side != offsets:
        raise ValueError(f"{offsets} offsets are those of no square grid, nor of the model's {config.grid_size}")
    rows = own[0] if offsets == own[0] * own[1] else side
    table = rearrange(tables[..., :offsets], "l h (r c) -> l h r c", r=rows)
    return [table.contiguous(), tables[..., offsets:].contiguous()]


def _to_theirs(pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:  # noqa: ARG001
    tables = torch.cat((rearrange(pieces[0], "l h r c -> l h (r c)"), pieces[1]), dim=2)
    return [table.contiguous() for table in rearrange(tables, "l h e -> l e h")]


BEIT = Layout(
    name="timm-beit",
    recognizes=lambda tensors: (
        "patch_embed.proj.weight" in tensors
        and "blocks.0.attn.q_bias" in tensors
        and (f"blocks.0.attn.{_TABLE}" in tensors or f"rel_pos_bias.{_TABLE}" in tensors)
    ),
    fits=lambda config, tensors: config.positions == "relative",  # noqa: ARG005
    rules=(
        *shared_rules(),
        *FUSED,
        *relative_biases(f"rel_pos_bias.{_TABLE}", f"blocks.{{layers}}.attn.{_TABLE}"),
    ),
    undetermined="the pooling",
    reference=beit_forward,
    check_config=check_expressible,
    dropped={"mask_token": MASK_TOKEN, r".*relative_position_index": INDEX, r"lm_head\..*": PREDICTION},
    relative_resize="geometric",
)
