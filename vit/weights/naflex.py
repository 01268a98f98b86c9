"""timm's names for a NaFlexVit: its plain models' but for a linear patch embedding and positions `1 h w c`.

At one image size it is a plain Vision Transformer (`vit.libraries.timm_naflex`).
"""

from __future__ import annotations

from dataclasses import replace

from einops import rearrange
from torch import Tensor

from vit.config import ViTConfig
from vit.libraries.timm_naflex import RESIZES, build_naflex
from vit.weights.layout import Forward, Layout, Rule, Tensors, patch_rows
from vit.weights.timm import RULES as PLAIN

_EMBEDDED = {
    "class_token": "embeds.cls_token",
    "register_tokens": "embeds.reg_token",
    "embedding_norm.{kind}": "embeds.norm.{kind}",
}
"""Our names of what timm keeps in `embeds`, under other names than in its plain models."""


def _flat(pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:  # noqa: ARG001
    return [pieces[0].flatten(1, 2)]


def _square(pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:
    return [rearrange(pieces[0], "1 (gh gw) c -> 1 gh gw c", gh=config.grid_size[0]).contiguous()]


def _rules() -> tuple[Rule, ...]:
    own = ("embedding.projection.", "positions.", "distillation_")
    others = (rule for rule in PLAIN if not rule.ours[0].startswith(own))
    shared = (replace(rule, theirs=(_EMBEDDED.get(rule.ours[0], rule.theirs[0]),)) for rule in others)
    table = Rule(("positions.grid",), ("embeds.pos_embed",), to_ours=_flat, to_theirs=_square)
    return (*patch_rows("embeds.proj"), table, *shared)


def _forward(config: ViTConfig, tensors: Tensors) -> Forward:
    model = build_naflex(config)
    model.load_state_dict(dict(tensors))
    return model.eval()


NAFLEX = Layout(
    name="timm-naflex",
    recognizes=lambda tensors: "embeds.proj.weight" in tensors and tensors["embeds.proj.weight"].dim() == 2,
    rules=_rules(),
    undetermined="heads and how positions are resized",
    reference=_forward,
    own_resizes=tuple(RESIZES.values()),
)
