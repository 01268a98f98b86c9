"""Google's names for a Vision Transformer's arrays in an `.npz` file, and ours.

`NPZ`: the original files and AugReg (github.com/google-research/vision_transformer); `BIG_VISION`: the later ones of
github.com/google-research/big_vision. Their kernels are (in, out) and heads are an axis of their own. Both compute GELU
by its tanh approximation (Flax's default), which is used for a file without a model's name; timm and Hugging Face use
exact GELU with the same weights, as do the names that we share with timm.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from vit.config import ViTConfig
from vit.libraries import NoCounterpart
from vit.libraries.timm_writing import build_timm
from vit.weights.files import write_tensors
from vit.weights.layout import Forward, Layout, Rule, Tensors, copied, fused, positions, reshaped, shape_of

PARTS = ("query", "key", "value")
MATRIX = "i o -> o i"
_POOL = "MAPHead_0"


def _norm(ours: str, theirs: str) -> tuple[Rule, ...]:
    return copied(f"{ours}.weight", f"{theirs}/scale"), copied(f"{ours}.bias", f"{theirs}/bias")


def _dense(ours: str, theirs: str) -> tuple[Rule, ...]:
    return reshaped(f"{ours}.weight", f"{theirs}/kernel", MATRIX), copied(f"{ours}.bias", f"{theirs}/bias")


def _attention_output(ours: str, theirs: str) -> tuple[Rule, ...]:
    return reshaped(f"{ours}.weight", f"{theirs}/kernel", "h d c -> c (h d)"), copied(f"{ours}.bias", f"{theirs}/bias")


def _rules(attention: str, norm: str, mlp: str, table: str) -> tuple[Rule, ...]:
    """`attention`, `norm` and `mlp` are the names of a block's parts, `table` is that of the positions."""
    block, ours = "Transformer/encoderblock_{layer}", "blocks.{layer}"
    qkv, pool = f"{block}/{attention}", f"{_POOL}/MultiHeadDotProductAttention_0"
    return (
        reshaped("embedding.projection.weight", "embedding/kernel", "ph pw k c -> c k ph pw"),
        copied("embedding.projection.bias", "embedding/bias"),
        copied("class_token", "cls"),
        *positions(table),
        *_norm(f"{ours}.norm1", f"{block}/LayerNorm_0"),
        fused(f"{ours}.attention.qkv.weight", tuple(f"{qkv}/{part}/kernel" for part in PARTS), "c h d -> (h d) c"),
        fused(f"{ours}.attention.qkv.bias", tuple(f"{qkv}/{part}/bias" for part in PARTS), "h d -> (h d)"),
        *_attention_output(f"{ours}.attention.output", f"{block}/{attention}/out"),
        *_norm(f"{ours}.norm2", f"{block}/{norm}"),
        *_dense(f"{ours}.feedforward.fc1", f"{block}/{mlp}/Dense_0"),
        *_dense(f"{ours}.feedforward.fc2", f"{block}/{mlp}/Dense_1"),
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
        *_dense("attention_pool.feedforward.fc1", f"{_POOL}/MlpBlock_0/Dense_0"),
        *_dense("attention_pool.feedforward.fc2", f"{_POOL}/MlpBlock_0/Dense_1"),
        *_dense("representation", "pre_logits"),
        *_dense("head", "head"),
    )


def _config(tensors: Tensors, attention: str, mlp: str, table: str) -> ViTConfig | None:
    """Derive the architecture from the arrays; None if the patches do not form a square grid."""
    ph, pw, _, width = shape_of(tensors, "embedding/kernel", 4)
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


def _check_expressible(config: ViTConfig) -> None:
    plain = ViTConfig()
    fields = ["positions", "norm", "embedding_norm", "qkv_bias", "proj_bias", "final_norm"]
    fields += ["pool_prefix", "pool_heads", "pool_mlp_ratio", *(["head_bias"] if config.num_classes else [])]
    for field in fields:
        found, only = getattr(config, field), getattr(plain, field)
        if found != only:
            raise NoCounterpart(f"--to: Google has no model with model.{field} {found!r}; it has {only}")


def npz_forward(config: ViTConfig, tensors: Tensors) -> Forward:
    """Build timm's model through timm's own reader of these files. ValueError for an unsupported architecture."""
    from timm.models.vision_transformer import VisionTransformer

    model = build_timm(config)
    assert isinstance(model, VisionTransformer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.npz"
        write_tensors(path, tensors)
        model.load_pretrained(str(path))
    return model.eval()


def _layout(name: str, attention: str, norm: str, mlp: str, table: str) -> Layout:
    return Layout(
        name=name,
        recognizes=lambda tensors: "embedding/kernel" in tensors and table in tensors,
        rules=_rules(attention, norm, mlp, table),
        config=lambda tensors: _config(tensors, attention, mlp, table),
        reference=npz_forward,
        check_config=_check_expressible,
        position_resize="bilinear_corners",
        prefixes=("opt/target/", "params/", "img/"),
        dropped={
            r"opt/.*|step": "the optimizer's state",
            r"txt/.*|t|b": "the text tower and the loss of an image–text model",
        },
    )


NPZ = _layout(
    *("npz", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"), "Transformer/posembed_input/pos_embedding"
)
BIG_VISION = _layout("big_vision", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0", "pos_embedding")
