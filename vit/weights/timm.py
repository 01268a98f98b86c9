"""timm's names for a Vision Transformer's tensors, and ours. A ResNet's are the same in both.

timm (Wightman, github.com/huggingface/pytorch-image-models) keeps one `pos_embed` for prefix tokens and patches; here
they are two tensors, so that the grid can be resized on its own. Facebook's DeiT, DINO and MAE use these names too.
timm's architectures are in `vit.libraries.timm_reading`.
"""

from __future__ import annotations

from vit.config import ViTConfig
from vit.libraries.timm_eva import is_eva
from vit.libraries.timm_writing import check_expressible, timm_forward
from vit.weights.layout import Layout, Tensors, copied, is_gated, is_plain, positions, split

RULES = (
    copied("embedding.projection.{kind}", "patch_embed.proj.{kind}"),
    copied("embedding_norm.{kind}", "patch_embed.norm.{kind}"),
    copied("class_token", "cls_token"),
    copied("distillation_token", "dist_token"),
    copied("register_tokens", "reg_token"),
    *positions("pos_embed"),
    copied("pre_norm.{kind}", "norm_pre.{kind}"),
    copied("blocks.{layer}.norm1.{kind}", "blocks.{layer}.norm1.{kind}"),
    copied("blocks.{layer}.attention.qkv.{kind}", "blocks.{layer}.attn.qkv.{kind}"),
    copied("blocks.{layer}.attention.query_norm.{kind}", "blocks.{layer}.attn.q_norm.{kind}"),
    copied("blocks.{layer}.attention.key_norm.{kind}", "blocks.{layer}.attn.k_norm.{kind}"),
    copied("blocks.{layer}.attention.output.{kind}", "blocks.{layer}.attn.proj.{kind}"),
    copied("blocks.{layer}.scale1.gamma", "blocks.{layer}.ls1.gamma"),
    copied("blocks.{layer}.norm2.{kind}", "blocks.{layer}.norm2.{kind}"),
    copied("blocks.{layer}.feedforward.fc1.{kind}", "blocks.{layer}.mlp.fc1.{kind}", when=is_plain),
    split(
        ("blocks.{layer}.feedforward.gate.{kind}", "blocks.{layer}.feedforward.fc1.{kind}"),
        "blocks.{layer}.mlp.fc1.{kind}",
        when=is_gated,
    ),
    copied("blocks.{layer}.feedforward.fc2.{kind}", "blocks.{layer}.mlp.fc2.{kind}"),
    copied("blocks.{layer}.scale2.gamma", "blocks.{layer}.ls2.gamma"),
    copied("norm.{kind}", "norm.{kind}"),
    copied("attention_pool.probe", "attn_pool.latent"),
    copied("attention_pool.attention.query.{kind}", "attn_pool.q.{kind}"),
    split(("attention_pool.attention.key.{kind}", "attention_pool.attention.value.{kind}"), "attn_pool.kv.{kind}"),
    copied("attention_pool.attention.output.{kind}", "attn_pool.proj.{kind}"),
    copied("attention_pool.norm.{kind}", "attn_pool.norm.{kind}"),
    copied("attention_pool.feedforward.fc1.{kind}", "attn_pool.mlp.fc1.{kind}"),
    copied("attention_pool.feedforward.fc2.{kind}", "attn_pool.mlp.fc2.{kind}"),
    copied("pool_norm.{kind}", "fc_norm.{kind}"),
    copied("head.{kind}", "head.{kind}"),
    copied("distillation_head.{kind}", "head_dist.{kind}"),
)


def is_named_as_eva(config: ViTConfig, tensors: Tensors) -> bool:
    """Whether tensors with timm's names are those of EVA's blocks (`vit.weights.eva`)."""
    return is_eva(config) or "blocks.0.attn.q_bias" in tensors or "blocks.0.attn.q_proj.weight" in tensors


def _is_plain(tensors: Tensors) -> bool:
    """No tensor has a name that only models of EVA's blocks have, and DeiT-III's files for the scales."""
    others = {"blocks.0.gamma_1", "blocks.0.attn.q_bias", "blocks.0.attn.q_proj.weight", "rope.freqs"}
    has_blocks = any(name.startswith("blocks.0.") for name in tensors)
    return "patch_embed.proj.weight" in tensors and has_blocks and not others & set(tensors)


TIMM = Layout(
    name="timm",
    recognizes=_is_plain,
    fits=lambda config, tensors: not is_named_as_eva(config, tensors),
    rules=RULES,
    reference=timm_forward,
    check_config=check_expressible,
)
