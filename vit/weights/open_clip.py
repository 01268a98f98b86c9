"""The image tower of CLIP in OpenAI's names, which open_clip keeps, and ours.

Radford et al. 2021; github.com/mlfoundations/open_clip. The projection into the space shared with text is our head,
without a bias; the text's half of a file is left out by name. No file says whether the activation is QuickGELU (OpenAI)
or GELU (most of open_clip's), nor how many heads there are: the model must be named.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from vit.config import ViTConfig, check
from vit.layers.feedforward import ACTIVATIONS
from vit.weights.layout import Forward, Layout, Tensors, copied, positions, reshaped

_LAYER = "visual.transformer.resblocks.{layer}"
RULES = (
    copied("embedding.projection.{kind}", "visual.conv1.{kind}"),
    reshaped("class_token", "visual.class_embedding", "c -> 1 1 c"),
    *positions("visual.positional_embedding", "n c -> 1 n c"),
    copied("pre_norm.{kind}", "visual.ln_pre.{kind}"),
    copied("blocks.{layer}.norm1.{kind}", f"{_LAYER}.ln_1.{{kind}}"),
    copied("blocks.{layer}.attention.qkv.{kind}", f"{_LAYER}.attn.in_proj_{{kind}}"),
    copied("blocks.{layer}.attention.output.{kind}", f"{_LAYER}.attn.out_proj.{{kind}}"),
    copied("blocks.{layer}.norm2.{kind}", f"{_LAYER}.ln_2.{{kind}}"),
    copied("blocks.{layer}.feedforward.expand.{kind}", f"{_LAYER}.mlp.c_fc.{{kind}}"),
    copied("blocks.{layer}.feedforward.contract.{kind}", f"{_LAYER}.mlp.c_proj.{{kind}}"),
    copied("norm.{kind}", "visual.ln_post.{kind}"),
    reshaped("head.weight", "visual.proj", "c k -> k c"),
)
TEXT = "the text's half of the model"
_SAME = (
    *("pooling", "class_token", "distillation_token", "num_registers", "positions", "qk_norm", "qkv_bias", "pre_norm"),
    *("final_norm", "positions_on_prefix", "representation_width", "layer_scale", "stem"),
)
"""Fields that all of open_clip's plain towers share."""
DROPPED = {
    r"transformer\..*|token_embedding\.weight|positional_embedding|ln_final\..*|text_projection": TEXT,
    r"logit_scale|logit_bias|attn_mask": TEXT,
    r"input_resolution|context_length|vocab_size": "numbers about the model, in OpenAI's own files",
}


def open_clip_forward(config: ViTConfig, tensors: Tensors) -> Forward:
    """open_clip's own image tower with these tensors. ValueError for an architecture that it does not have."""
    from open_clip.transformer import LayerNorm, VisionTransformer

    _check_expressible(config)
    model = VisionTransformer(
        image_size=config.image_size[0],
        patch_size=config.patch_size[0],
        width=config.width,
        layers=config.depth,
        heads=config.num_heads,
        mlp_ratio=config.mlp_ratio,
        output_dim=config.num_classes or config.width,
        act_layer=partial(_Activation, config.feedforward),
        norm_layer=partial(LayerNorm, eps=config.norm_eps),
    )
    if config.num_classes == 0:
        model.proj = None
    model.load_state_dict({name.removeprefix("visual."): tensor for name, tensor in tensors.items()})
    return model.eval()


class _Activation(nn.Module):
    """Ours under the constructor that open_clip expects."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[kind]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x)


def _check_expressible(config: ViTConfig) -> None:
    clip = ViTConfig(pre_norm=True)
    for field in _SAME:
        found, wanted = getattr(config, field), getattr(clip, field)
        check(found == wanted, f"--to: model.{field}", found, f"open_clip has {wanted!r}")
    check(config.feedforward in ACTIVATIONS, "--to: model.feedforward", config.feedforward, "open_clip has no gates")
    no_bias = not config.head_bias or config.num_classes == 0
    check(no_bias, "--to: model.head_bias", config.head_bias, "open_clip's head is a projection without a bias")


OPEN_CLIP = Layout(
    name="open_clip",
    recognizes=lambda tensors: "visual.class_embedding" in tensors,
    rules=RULES,
    config=lambda tensors: None,  # noqa: ARG005 - neither activation nor number of heads is in a tensor
    peer=open_clip_forward,
    prefixes=("module.",),
    dropped=DROPPED,
)
