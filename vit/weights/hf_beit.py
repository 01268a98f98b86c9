"""Hugging Face's BEiT and Data2Vec: names of tensors (as in their files), and their configurations.

Bao et al. 2021; Baevski et al. 2022; DiT, for documents, is a BEiT with learned positions (Li et al. 2022). Both
compute the same under the same names with different prefixes. Keys have no bias. The tensors tell how it pools and
which tables of relative biases there are. transformers reads the table of images that are not square transposed, so
these are refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from vit.config import ViTConfig
from vit.weights.beit import INDEX, PREDICTION, relative_biases
from vit.weights.eva import from_fused, to_fused
from vit.weights.hf_family import QUERY_KEY_VALUE, Family
from vit.weights.layout import MASK_TOKEN, Layout, Rule, Tensors, copied, fused, positions

_PREFIXES = ("", "beit.", "data2vec_vision.")
_BIAS = "relative_position_bias.relative_position_bias_table"


def _rules(prefix: str, norm: str) -> tuple[Rule, ...]:
    embeddings, layer = f"{prefix}embeddings.", f"{prefix}encoder.layer.{{layer}}."
    query, key, value = (f"{layer}{part}" for part in QUERY_KEY_VALUE)
    biases = tuple(name.format(layer="{layer}", kind="bias") for name in (query, value))
    return (
        copied("class_token", f"{embeddings}cls_token"),
        *positions(f"{embeddings}position_embeddings"),
        *relative_biases(f"{prefix}encoder.{_BIAS}", f"{prefix}encoder.layer.{{layers}}.attention.attention.{_BIAS}"),
        copied("embedding.projection.{kind}", f"{embeddings}patch_embeddings.projection.{{kind}}"),
        copied("blocks.{layer}.norm1.{kind}", f"{layer}layernorm_before.{{kind}}"),
        fused(
            "blocks.{layer}.attention.qkv.weight",
            tuple(name.format(layer="{layer}", kind="weight") for name in (query, key, value)),
        ),
        Rule(("blocks.{layer}.attention.qkv.bias",), biases, to_ours=to_fused, to_theirs=partial(from_fused, count=2)),
        copied("blocks.{layer}.attention.output.{kind}", f"{layer}attention.output.dense.{{kind}}"),
        copied("blocks.{layer}.scale1.gamma", f"{layer}lambda_1"),
        copied("blocks.{layer}.norm2.{kind}", f"{layer}layernorm_after.{{kind}}"),
        copied("blocks.{layer}.feedforward.fc1.{kind}", f"{layer}intermediate.dense.{{kind}}"),
        copied("blocks.{layer}.feedforward.fc2.{kind}", f"{layer}output.dense.{{kind}}"),
        copied("blocks.{layer}.scale2.gamma", f"{layer}lambda_2"),
        copied("norm.{kind}", f"{norm}layernorm.{{kind}}"),
        copied("pool_norm.{kind}", f"{prefix}pooler.layernorm.{{kind}}"),
        copied("head.{kind}", "classifier.{kind}"),
    )


def _layout(prefix: str, *, in_pretraining: bool = False) -> Layout:
    """`in_pretraining`: of `BeitForMaskedImageModeling`, whose final norm is outside the encoder."""
    first = (f"{prefix}embeddings.cls_token", f"{prefix}encoder.layer.0.lambda_1")
    name = f"hf-beit ({prefix}…)" if prefix else "hf-beit"
    return Layout(
        name=f"{name}, in pre-training" if in_pretraining else name,
        recognizes=lambda tensors: (
            all(each in tensors for each in first) and ("lm_head.weight" in tensors) is in_pretraining
        ),
        rules=_rules(prefix, "" if in_pretraining else prefix),
        position_resize="bicubic",
        relative_resize="bilinear",
        dropped={
            rf"{prefix}embeddings\.mask_token": MASK_TOKEN,
            r".*relative_position_index": INDEX,
            r"lm_head\..*": PREDICTION,
        },
    )


def _from_tensors(tensors: Tensors) -> dict[str, Any]:
    """Fields that the tensors tell. ValueError for positions of both kinds."""
    shared = any(name.endswith(f"encoder.{_BIAS}") for name in tensors)
    own = any(name.endswith(f"encoder.layer.0.attention.attention.{_BIAS}") for name in tensors)
    absolute = any(name.endswith("embeddings.position_embeddings") for name in tensors)
    if absolute and (shared or own):
        raise ValueError("model.pretrained: positions of both kinds, absolute and relative, are not supported")
    means = any(name.endswith("pooler.layernorm.weight") for name in tensors)
    normed = any(name.removeprefix(prefix) == "layernorm.weight" for name in tensors for prefix in _PREFIXES)
    fields: dict[str, Any] = {
        "num_classes": len(tensors["classifier.weight"]) if "classifier.weight" in tensors else 0,
        "pooling": "gap" if means else "cls",
        "final_norm": "pooled" if means else "tokens" if normed else "none",
        "positions": "learned_1d" if absolute else "none",
    }
    if not (shared or own):
        return fields
    tables = "both" if shared and own else "shared" if shared else "blocks"
    return fields | {"positions": "relative", "relative_tables": tables, "relative_prefix": True}


def _written(config: ViTConfig) -> dict[str, Any]:
    relative = config.positions == "relative"
    return {
        "use_mean_pooling": config.final_norm != "tokens",
        "use_absolute_position_embeddings": config.positions == "learned_1d",
        "use_relative_position_bias": relative and config.relative_tables != "shared",
        "use_shared_relative_position_bias": relative and config.relative_tables != "blocks",
    }


def _class(config: ViTConfig) -> str:
    allowed = ("relative", "learned_1d", "none") if config.pooling == "gap" else ("relative",)
    if config.positions not in allowed:
        raise ValueError(
            f"model.positions must be one of {allowed} with pooling {config.pooling!r}, not {config.positions!r}"
        )
    if config.positions == "relative" and not config.relative_prefix:
        raise ValueError("model.relative_prefix must be True")
    known = [("gap", "pooled"), ("cls", "tokens"), *([("cls", "none")] if config.num_classes == 0 else [])]
    if (config.pooling, config.final_norm) not in known:
        rule = f"model.pooling and model.final_norm must be {' or '.join(map(str, known))}"
        raise ValueError(f"{rule}, not {config.pooling!r} and {config.final_norm!r}")
    if config.layer_scale is None:
        raise ValueError("model.layer_scale must not be None")
    return "BeitForImageClassification" if config.num_classes else "BeitModel"


_FIELDS = ("pooling", "final_norm", "positions", "relative_tables", "relative_prefix")
BEIT, DATA2VEC = (
    Family(
        model_type,
        _from_tensors,
        _class,
        _FIELDS,
        keys={"layer_scale_init_value": "layer_scale"},
        defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12, "layer_scale_init_value": 0.1},
        square=True,
        written=_written,
    )
    for model_type in ("beit", "data2vec-vision")
)
LAYOUTS = (_layout("beit.", in_pretraining=True), *(_layout(prefix) for prefix in _PREFIXES))
