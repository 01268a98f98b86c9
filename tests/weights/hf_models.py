"""Models of transformers with random weights, their outputs, and the comparison with ours.

For `test_huggingface` and `python -m tests.weights.layouts`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from tests.weights.proof import Row
from vit.config import ModelConfig
from vit.hub import OpenedModel, load_model
from vit.weights.convert import is_round_trip_exact, logit_difference
from vit.weights.huggingface import read_folder, to_huggingface
from vit.weights.layouts import find_layout

SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
MLP: dict[str, Any] = SIZES | {"intermediate_size": 100}
DECODER = {"decoder_hidden_size": 48, "decoder_num_attention_heads": 4, "decoder_num_hidden_layers": 1}
TEXT = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
NAFLEX = {name: value for name, value in MLP.items() if name != "image_size"} | {"num_patches": 16}
"""A number of patches stands in place of the size."""
RELATIVE = MLP | {"use_relative_position_bias": True, "layer_scale_init_value": 0.5}
SHARED = MLP | {"use_shared_relative_position_bias": True, "layer_scale_init_value": 0.5}
B16 = {"num_hidden_layers": 2}
"""The library's default sizes (B/16, or B/14 for DINOv2) with two blocks."""


def logits(output: Any) -> Tensor:
    return output.logits


def pooled(output: Any) -> Tensor:
    return output.pooler_output


def first_token(output: Any) -> Tensor:
    return output.last_hidden_state[:, 0]


def mean_of_tokens(output: Any) -> Tensor:
    return output.last_hidden_state.mean(dim=1)


def embedding(output: Any) -> Tensor:
    return output.image_embeds


@dataclass(frozen=True)
class Case:
    """A class of transformers, its configuration, and the output that equals our `forward`."""

    library_class: str
    config_class: str
    settings: dict[str, Any]
    output: Callable[[Any], Tensor]
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the constructor."""
    ours: dict[str, Any] = field(default_factory=dict)
    """Expected fields of our configuration, besides the sizes."""
    how: str = "whole"
    dropped: int = 0
    """Number of dropped tensors; -1: some."""


REGISTERS = "Dinov2WithRegisters"
NO_POOLER = {"add_pooling_layer": False}
TOWER = {"vision_config": MLP, "text_config": TEXT}
CASES: dict[str, Case] = {
    "ViTForImageClassification": Case(
        "ViTForImageClassification", "ViTConfig", MLP | {"num_labels": 7}, logits, ours={"norm_eps": 1e-12}
    ),
    "ViTForImageClassification, 48×32": Case(
        "ViTForImageClassification", "ViTConfig", MLP | {"image_size": [48, 32], "num_labels": 7}, logits
    ),
    "ViTModel": Case("ViTModel", "ViTConfig", MLP, pooled, ours={"representation_width": 48}),
    "ViTModel without pooler": Case(
        "ViTModel", "ViTConfig", MLP | {"qkv_bias": False}, first_token, NO_POOLER, ours={"qkv_bias": False}
    ),
    "DeiTModel": Case("DeiTModel", "DeiTConfig", MLP, pooled, ours={"distillation_head": False}),
    "DeiTForImageClassification": Case(
        "DeiTForImageClassification", "DeiTConfig", MLP | {"num_labels": 7}, logits, ours={"distillation_head": False}
    ),
    "DeiTForImageClassificationWithTeacher": Case(
        "DeiTForImageClassificationWithTeacher",
        "DeiTConfig",
        MLP | {"num_labels": 7},
        logits,
        ours={"distillation_token": True, "distillation_head": True},
    ),
    "ViTMAEModel": Case("ViTMAEModel", "ViTMAEConfig", MLP | {"mask_ratio": 0.0}, first_token),
    "ViTMAEForPreTraining": Case(
        "ViTMAEForPreTraining", "ViTMAEConfig", MLP | DECODER | {"mask_ratio": 0.0}, first_token, dropped=-1
    ),
    "ViTMSNModel": Case("ViTMSNModel", "ViTMSNConfig", MLP, first_token, ours={"norm_eps": 1e-6}),
    "ViTMSNForImageClassification": Case(
        "ViTMSNForImageClassification", "ViTMSNConfig", MLP | {"num_labels": 7}, logits, ours={"num_classes": 7}
    ),
    "IJepaModel": Case("IJepaModel", "IJepaConfig", MLP, mean_of_tokens, ours={"pooling": "gap", "class_token": False}),
    "IJepaForImageClassification": Case(
        "IJepaForImageClassification", "IJepaConfig", MLP | {"num_labels": 7}, logits, ours={"num_classes": 7}
    ),
    "Dinov2Model": Case("Dinov2Model", "Dinov2Config", SIZES | {"layerscale_value": 0.5}, pooled, dropped=1),
    "Dinov2ForImageClassification, SwiGLU": Case(
        "Dinov2ForImageClassification",
        "Dinov2Config",
        SIZES | {"use_swiglu_ffn": True, "num_labels": 7},
        logits,
        ours={"feedforward": "swiglu", "pooling": "cls_gap"},
        dropped=1,
    ),
    "Dinov2WithRegistersModel": Case(f"{REGISTERS}Model", f"{REGISTERS}Config", SIZES, pooled, dropped=1),
    "Dinov2WithRegistersModel, without any": Case(
        f"{REGISTERS}Model", f"{REGISTERS}Config", SIZES | {"num_register_tokens": 0}, pooled, dropped=2
    ),
    "Dinov2WithRegistersForImageClassification": Case(
        f"{REGISTERS}ForImageClassification",
        f"{REGISTERS}Config",
        SIZES | {"num_labels": 7, "num_register_tokens": 3},
        logits,
        ours={"num_registers": 3, "positions_on_prefix": True},
        dropped=1,
    ),
    "DINOv3ViTModel": Case(
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        MLP | {"num_register_tokens": 4, "layerscale_value": 0.5},
        pooled,
        ours={"rope_coordinates": "centred", "num_registers": 4, "norm_eps": 1e-5},
        dropped=1,
    ),
    "DINOv3ViTModel, without registers": Case(
        "DINOv3ViTModel", "DINOv3ViTConfig", MLP, pooled, ours={"num_registers": 0}, dropped=2
    ),
    "DINOv3ViTModel, SwiGLU, no biases of attention": Case(
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        MLP
        | {"intermediate_size": 104, "num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"}
        | {"query_bias": False, "value_bias": False},
        pooled,
        ours={"feedforward": "swiglu", "qkv_bias": False},
        dropped=1,
    ),
    "CLIPVisionModel": Case("CLIPVisionModel", "CLIPVisionConfig", MLP, pooled, ours={"feedforward": "quick_gelu"}),
    "CLIPVisionModelWithProjection": Case(
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        MLP | {"projection_dim": 20, "hidden_act": "gelu"},
        embedding,
        ours={"head_bias": False, "num_classes": 20, "feedforward": "gelu"},
    ),
    "CLIPModel": Case(
        "CLIPModel", "CLIPConfig", TOWER | {"projection_dim": 20}, pooled, ours={"head_bias": False}, dropped=-1
    ),
    "SiglipVisionModel": Case(
        "SiglipVisionModel", "SiglipVisionConfig", MLP, pooled, ours={"pooling": "map", "feedforward": "gelu_tanh"}
    ),
    "SiglipModel": Case("SiglipModel", "SiglipConfig", TOWER, pooled, dropped=-1),
    "Siglip2VisionModel": Case(
        "Siglip2VisionModel",
        "Siglip2VisionConfig",
        NAFLEX,
        pooled,
        ours={"pooling": "map", "position_resize": "bilinear_antialiased", "image_size": (32, 32)},
    ),
    "Siglip2Model": Case("Siglip2Model", "Siglip2Config", TOWER | {"vision_config": NAFLEX}, pooled, dropped=-1),
    "Aimv2VisionModel": Case(
        "Aimv2VisionModel",
        "Aimv2VisionConfig",
        MLP | {"intermediate_size": 104},
        pooled,
        ours={"pooling": "query", "norm": "rms", "embedding_norm": True, "proj_bias": False, "norm_eps": 1e-5},
    ),
    "Aimv2VisionModel without a head": Case(
        "Aimv2VisionModel",
        "Aimv2VisionConfig",
        MLP | {"intermediate_size": 104, "use_head": False, "rms_norm_eps": 1e-4},
        mean_of_tokens,
        ours={"pooling": "gap", "norm_eps": 1e-4},
    ),
    "BeitForImageClassification": Case(
        "BeitForImageClassification",
        "BeitConfig",
        RELATIVE | {"num_labels": 7},
        logits,
        ours={"pooling": "gap", "final_norm": "pooled", "relative_tables": "blocks", "relative_prefix": True},
    ),
    "BeitModel": Case("BeitModel", "BeitConfig", SHARED, pooled, ours={"relative_tables": "shared"}),
    "BeitModel, class token": Case(
        "BeitModel",
        "BeitConfig",
        RELATIVE | {"use_mean_pooling": False},
        pooled,
        ours={"pooling": "cls", "final_norm": "tokens"},
    ),
    "BeitModel, learned positions": Case(
        "BeitModel",
        "BeitConfig",
        MLP | {"use_absolute_position_embeddings": True},
        pooled,
        ours={"positions": "learned_1d"},
    ),
    "BeitForMaskedImageModeling": Case(
        "BeitForMaskedImageModeling",
        "BeitConfig",
        SHARED | {"use_mask_token": True, "vocab_size": 20},
        first_token,
        ours={"pooling": "cls", "final_norm": "tokens"},
        dropped=3,
    ),
    "Data2VecVisionModel": Case(
        "Data2VecVisionModel",
        "Data2VecVisionConfig",
        SHARED,
        first_token,
        ours={"pooling": "cls", "final_norm": "none"},
    ),
    "Data2VecVisionModel with pooler": Case(
        "Data2VecVisionModel", "Data2VecVisionConfig", SHARED, pooled, {"add_pooling_layer": True}
    ),
    "Data2VecVisionForImageClassification": Case(
        "Data2VecVisionForImageClassification",
        "Data2VecVisionConfig",
        RELATIVE | {"use_shared_relative_position_bias": True, "num_labels": 7},
        logits,
        ours={"relative_tables": "both"},
    ),
}
LARGE: dict[str, Case] = {
    "ViT-B/16 as its class's defaults": Case(
        "ViTForImageClassification", "ViTConfig", B16 | {"num_labels": 1000}, logits, how="2 blocks"
    ),
    "CLIP ViT-B/32 as its class's defaults": Case(
        "CLIPVisionModelWithProjection", "CLIPVisionConfig", B16, embedding, how="2 blocks"
    ),
    "DINOv2-g's SwiGLU": Case(
        "Dinov2Model",
        "Dinov2Config",
        B16 | {"hidden_size": 1536, "num_attention_heads": 24, "use_swiglu_ffn": True, "patch_size": 14},
        pooled,
        how="2 blocks",
        dropped=1,
    ),
    "BEiT-B/16": Case(
        "BeitForImageClassification",
        "BeitConfig",
        B16 | {"use_relative_position_bias": True, "num_labels": 1000},
        logits,
        how="2 blocks",
    ),
}


def library_model(case: Case) -> Any:
    """The case's model with random parameters."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, case.config_class)(**case.settings)
    model: nn.Module = getattr(transformers, case.library_class)(config, **case.options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.1 if parameter.dim() < 2 else 0.5 / max(1, parameter[0].numel()) ** 0.5
            parameter.add_(torch.randn_like(parameter) * spread)
    return model


@torch.no_grad()
def library_output(case: Case, model: nn.Module, images: Tensor, **options: Any) -> Tensor:
    """The expected output of our `forward`; `options` of the library's."""
    if "MAE" in case.library_class:
        encoder: Any = getattr(model, "vit", model)
        step = encoder.config.patch_size
        noise = torch.arange(float(images.shape[2] // step * (images.shape[3] // step)))
        return case.output(encoder(images, noise=noise.expand(len(images), -1), **options))
    inputs = patches_of(images, model.config) if "Siglip2" in case.library_class else {"pixel_values": images}
    if case.library_class == "BeitForMaskedImageModeling":  # its final norm is outside the encoder
        pretrained: Any = model
        return pretrained.layernorm(first_token(pretrained.beit(**inputs, **options)))
    if case.library_class in ("CLIPModel", "SiglipModel", "Siglip2Model"):
        model = model.get_image_features  # type: ignore[assignment]
    return case.output(model(**inputs, **options))


def patches_of(images: Tensor, config: Any) -> dict[str, Tensor]:
    """The inputs of a SigLIP 2 model: rows of pixels, which of them are there, and the grid."""
    step = getattr(config, "vision_config", config).patch_size
    rows = rearrange(images, "b k (gh ph) (gw pw) -> b (gh gw) (ph pw k)", ph=step, pw=step)
    grid = torch.tensor([images.shape[2] // step, images.shape[3] // step])
    return {
        "pixel_values": rows,
        "pixel_attention_mask": torch.ones(rows.shape[:2], dtype=torch.int),
        "spatial_shapes": grid.expand(len(images), 2),
    }


def saved(case: Case, folder: Path) -> nn.Module:
    """The case's model, saved in the folder."""
    model = library_model(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder)
    return model


def relative(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference, relative to the largest magnitude."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


@torch.no_grad()
def prove_folder(case: Case, folder: Path) -> tuple[Row, OpenedModel, float]:
    """Load their folder into our model, compare, and write it back: the row, our model, and the difference."""
    theirs = saved(case, folder)
    loaded = load_model(ModelConfig(pretrained=str(folder)))
    ours, report = loaded.model.eval(), loaded.report
    assert report is not None
    images = torch.randn(2, 3, *ours.config.image_size, generator=torch.Generator().manual_seed(1))
    largest = relative(ours(images), library_output(case, theirs, images))
    source = read_folder(folder)
    exact = is_round_trip_exact(source.layout, source.tensors, source.config)
    back = to_huggingface(source.config, ours.state_dict())[1]
    layout = find_layout(back)
    assert layout is not None
    there_and_back = logit_difference(ours, layout, back)
    kept = report.num_source - len(report.dropped)
    row = Row(source.layout.name, case.library_class, case.how, kept, report.num_source, largest, exact)
    return row, loaded, there_and_back


def rows() -> Iterator[Row]:
    """One row per case."""
    for case in (*CASES.values(), *LARGE.values()):
        with TemporaryDirectory() as folder:
            yield prove_folder(case, Path(folder))[0]
