"""Google's names for a Vision Transformer's arrays in an `.npz` file, and ours.

`NPZ`: the original files and AugReg (github.com/google-research/vision_transformer); `BIG_VISION`: the later ones of
github.com/google-research/big_vision. Kernels there are (in, out), heads an axis of their own. Both compute GELU by its
tanh approximation (Flax's default), so that is what a file without a name gives; timm and Hugging Face run the same
weights with the exact one, and so do the names that we share with timm.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from vit.config import ViTConfig
from vit.weights.files import write_tensors
from vit.weights.layout import Forward, Layout, Rule, Tensors, copied, fused, positions, reshaped
from vit.weights.timm_models import build_timm

PARTS = ("query", "key", "value")
MATRIX = "i o -> o i"
_POOL = "MAPHead_0"
_WRAPPERS = ("opt/target/", "params/", "img/")
_DROPPED = {
    r"opt/.*|step": "the optimizer's state",
    r"txt/.*|t|b": "the text tower and the loss of an image–text model",
}


def _norm(ours: str, theirs: str) -> tuple[Rule, ...]:
    return copied(f"{ours}.weight", f"{theirs}/scale"), copied(f"{ours}.bias", f"{theirs}/bias")


def _dense(ours: str, theirs: str) -> tuple[Rule, ...]:
    return reshaped(f"{ours}.weight", f"{theirs}/kernel", MATRIX), copied(f"{ours}.bias", f"{theirs}/bias")


def _attention_output(ours: str, theirs: str) -> tuple[Rule, ...]:
    return reshaped(f"{ours}.weight", f"{theirs}/kernel", "h d c -> c (h d)"), copied(f"{ours}.bias", f"{theirs}/bias")


def _rules(attention: str, norm: str, mlp: str, table: str) -> tuple[Rule, ...]:
    """`attention`, `norm`, `mlp`: what the parts of a block are called; `table`: the positions."""
    block, ours = "Transformer/encoderblock_{layer}", "blocks.{layer}"
    pool = f"{_POOL}/MultiHeadDotProductAttention_0"
    return (
        reshaped("embedding.projection.weight", "embedding/kernel", "ph pw k c -> c k ph pw"),
        copied("embedding.projection.bias", "embedding/bias"),
        copied("class_token", "cls"),
        *positions(table),
        *_norm(f"{ours}.norm1", f"{block}/LayerNorm_0"),
        fused(
            f"{ours}.attention.qkv.weight",
            tuple(f"{block}/{attention}/{part}/kernel" for part in PARTS),
            "c h d -> (h d) c",
        ),
        fused(
            f"{ours}.attention.qkv.bias", tuple(f"{block}/{attention}/{part}/bias" for part in PARTS), "h d -> (h d)"
        ),
        *_attention_output(f"{ours}.attention.output", f"{block}/{attention}/out"),
        *_norm(f"{ours}.norm2", f"{block}/{norm}"),
        *_dense(f"{ours}.feedforward.expand", f"{block}/{mlp}/Dense_0"),
        *_dense(f"{ours}.feedforward.contract", f"{block}/{mlp}/Dense_1"),
        *_norm("norm", "Transformer/encoder_norm"),
        copied("attention_pool.probe", f"{_POOL}/probe"),
        *(
            rule
            for part in PARTS
            for rule in (
                reshaped(f"attention_pool.attention.{part}.weight", f"{pool}/{part}/kernel", "c h d -> (h d) c"),
                reshaped(f"attention_pool.attention.{part}.bias", f"{pool}/{part}/bias", "h d -> (h d)"),
            )
        ),
        *_attention_output("attention_pool.attention.output", f"{pool}/out"),
        *_norm("attention_pool.norm", f"{_POOL}/LayerNorm_0"),
        *_dense("attention_pool.feedforward.expand", f"{_POOL}/MlpBlock_0/Dense_0"),
        *_dense("attention_pool.feedforward.contract", f"{_POOL}/MlpBlock_0/Dense_1"),
        *_dense("representation", "pre_logits"),
        *_dense("head", "head"),
    )


def _config(tensors: Tensors, attention: str, mlp: str, table: str) -> ViTConfig | None:
    """The architecture, all of which the arrays tell; None where the patches are no square grid."""
    ph, pw, _, width = tensors["embedding/kernel"].shape
    block = "Transformer/encoderblock_0"
    num_heads = tensors[f"{block}/{attention}/query/kernel"].shape[1]
    rows, with_class = tensors[table].shape[1], "cls" in tensors
    placed = with_class and math.isqrt(rows) ** 2 != rows
    side = math.isqrt(rows - placed)
    if side**2 != rows - placed:
        return None
    pooled = f"{_POOL}/probe" in tensors
    representation, head = tensors.get("pre_logits/kernel"), tensors.get("head/kernel")
    return ViTConfig(
        image_size=(side * ph, side * pw),
        patch_size=(ph, pw),
        width=width,
        depth=sum(name.endswith("/LayerNorm_0/scale") and name.startswith("Transformer/") for name in tensors),
        num_heads=num_heads,
        mlp_ratio=tensors[f"{block}/{mlp}/Dense_0/kernel"].shape[1] / width,
        feedforward="gelu_tanh",
        pooling="map" if pooled else "cls" if with_class else "gap",
        class_token=with_class,
        positions_on_prefix=placed or not with_class,
        representation_width=None if representation is None else representation.shape[1],
        num_classes=0 if head is None else head.shape[1],
        init="normal",
    )


def npz_forward(config: ViTConfig, tensors: Tensors) -> Forward:
    """timm's model, filled by timm's own reader of these files. ValueError for an architecture that it cannot read."""
    from timm.models.vision_transformer import VisionTransformer

    model = build_timm(config)
    assert isinstance(model, VisionTransformer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.npz"
        write_tensors(path, tensors)
        model.load_pretrained(str(path))
    return model.eval()


_OLD = ("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3", "Transformer/posembed_input/pos_embedding")
_NEW = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0", "pos_embedding")

NPZ = Layout(
    name="npz",
    recognizes=lambda tensors: "embedding/kernel" in tensors and _OLD[3] in tensors,
    rules=_rules(*_OLD),
    config=lambda tensors: _config(tensors, _OLD[0], _OLD[2], _OLD[3]),
    peer=npz_forward,
    prefixes=_WRAPPERS,
    dropped=_DROPPED,
)
BIG_VISION = Layout(
    name="big_vision",
    recognizes=lambda tensors: "embedding/kernel" in tensors and _NEW[3] in tensors,
    rules=_rules(*_NEW),
    config=lambda tensors: _config(tensors, _NEW[0], _NEW[2], _NEW[3]),
    peer=npz_forward,
    prefixes=_WRAPPERS,
    dropped=_DROPPED,
)
