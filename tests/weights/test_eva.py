"""timm's models of EVA's blocks: their own logits with their own weights, at other sizes too, and the way back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from tests.weights.proof import compare_names
from vit.config import ViTConfig
from vit.hub import create_model
from vit.libraries.timm import config_by_name
from vit.libraries.timm_reading import config_of
from vit.models import VisionTransformer, build_model
from vit.weights.convert import is_round_trip_exact
from vit.weights.eva import LAYOUTS
from vit.weights.layouts import find_layout
from vit.weights.loader import load_weights

REFUSED = {
    "eva02_enormous_patch14_clip_224": "norms after the branches",
    "vit_huge_patch16_sapiens2": "grouped queries",
    "vit_base_patch16_sapiens2": "LayerScale on one branch alone",
}
A_FEW = {
    "eva02_tiny_patch14_224": "timm-eva",
    "eva02_base_patch16_clip_224": "timm-eva02",
    "vit_tiny_patch16_dinov3_qkvb": "timm-eva",
    "vit_small_plus_patch16_dinov3": "timm-dinov3",
    "vit_small_patch16_rope_ape_224": "timm-rope",
    "vit_small_patch16_rope_mixed_224": "timm-rope",
    "vit_pe_spatial_tiny_patch16_512": "timm-rope",
    "vit_pe_core_tiny_patch16_384": "timm-rope",
    "vit_mediumd_patch16_rope_reg1_gap_256": "timm-eva",
}
"""Name → layout; one of every way of naming and of every kind of rotation."""
MOST_PARAMETERS = 150_000_000
"""Of two blocks, of the models that are built for real."""


def names() -> list[str]:
    refused = (*REFUSED, "sapiens2")
    return [name for name in timm.list_models(module="eva") if not any(part in name for part in refused)]


def two_blocks(name: str, **options: Any) -> nn.Module:
    """timm's model with two blocks and numbers that are far from those that it starts with."""
    torch.manual_seed(0)
    model = timm.create_model(name, depth=2, num_classes=7, **options).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1 or key in ("cls_token", "reg_token", "pos_embed", "head.weight"):
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def largest_difference(theirs: nn.Module, images: torch.Tensor) -> float:
    """Between timm's own forward pass and ours with its weights, relative to the largest logit."""
    config = config_of(theirs, "timm's")
    ours = build_model(config).eval()
    report = load_weights(ours, theirs.state_dict(), "timm's", source_grid=config.grid_size)
    assert len(report.loaded) == len(ours.state_dict())
    with torch.inference_mode():
        expected = theirs(images)
        return float((ours(images) - expected).abs().max() / expected.abs().max())


def check(name: str) -> None:
    theirs = two_blocks(name)
    tensors, config = theirs.state_dict(), config_of(theirs, name)
    layout = find_layout(tensors, config)
    assert layout in LAYOUTS
    assert A_FEW.get(name, layout.name) == layout.name
    assert is_round_trip_exact(layout, tensors, config)
    images = torch.randn(2, 3, *config.image_size, generator=torch.Generator().manual_seed(1))
    assert largest_difference(theirs, images) < 2e-6


@pytest.mark.parametrize("name", A_FEW)
def test_logits_are_timms(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", names())
def test_logits_of_every_model_are_timms(name: str) -> None:
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in timm.create_model(name, depth=2).parameters())
    if size > MOST_PARAMETERS:
        pytest.skip(f"two of its blocks have {size:,} parameters")
    check(name)


@pytest.mark.parametrize(
    "name",
    [
        *("eva02_tiny_patch14_224", "vit_tiny_patch16_dinov3_qkvb", "vit_small_patch16_rope_mixed_224"),
        "vit_pe_core_small_patch16_384",
    ],
)
def test_another_size_is_timms(name: str) -> None:
    patch = 14 if "patch14" in name else 16
    size = (4 * patch, 7 * patch)
    assert largest_difference(two_blocks(name, img_size=size), torch.randn(2, 3, *size)) < 2e-6


def test_rotation_follows_images_of_another_size() -> None:
    """DINOv3 has no table of positions: the same model takes every size, here and in timm."""
    theirs = two_blocks("vit_tiny_patch16_dinov3_qkvb")
    assert largest_difference(theirs, torch.randn(1, 3, 64, 112)) < 2e-6


@pytest.mark.parametrize("name", REFUSED)
def test_what_ours_does_not_compute_is_refused_by_name(name: str) -> None:
    with (
        torch.device("meta"),
        pytest.raises(ValueError, match=f"'{name}' is not supported: it has {REFUSED[name]}"),
    ):
        config_of(timm.create_model(name), name)


def test_a_file_needs_its_architectures_name(tmp_path: Path) -> None:
    name = "vit_small_patch16_rope_ape_224"
    theirs = two_blocks(name)
    file = tmp_path / "model.safetensors"
    save_file(theirs.state_dict(), file)
    with pytest.raises(ValueError, match=r"^model\.name: it is missing: .*model\.safetensors"):
        create_model(pretrained=str(file))
    ours = create_model(name, pretrained=str(file), depth=2, num_classes=7).eval()
    assert isinstance(ours, VisionTransformer)
    assert ours.config.positions == "learned_1d_rope"
    images = torch.randn(1, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("vit_small_patch16_rope_224", "timm-rope"),
        ("vit_small_patch16_rope_mixed_224", "timm-rope"),
        ("vit_small_patch16_rope_mixed_ape_224", "timm-rope"),
        ("vit_pe_spatial_gigantic_patch14_448", "timm-rope"),
        ("vit_small_patch16_dinov3", "timm-eva"),
        ("vit_small_plus_patch16_dinov3", "timm-dinov3"),
        ("eva02_base_patch14_224", "timm-eva02"),
    ],
)
def test_the_tensors_alone_tell_that_it_is_no_deit3(name: str, layout: str) -> None:
    """They have no learned positions, or rotations of their own, or a norm before the blocks."""
    with torch.device("meta"):
        tensors = timm.create_model(name, depth=1).state_dict()
    found = find_layout(tensors)
    assert found is not None
    assert found.name == layout
    assert "name it, as " in found.undetermined
    assert "deit3" not in found.undetermined


def test_a_file_without_positions_is_not_loaded_as_deit3(tmp_path: Path) -> None:
    name, file = "vit_small_patch16_rope_224", tmp_path / "model.safetensors"
    save_file(two_blocks(name).state_dict(), file)
    with pytest.raises(ValueError, match=r"layout timm-rope, .* heads and rotation; name it, as vit_base_patch16_rope"):
        create_model(pretrained=str(file))
    with pytest.raises(ValueError, match=r"does not have .*positions\.grid.*; is model\.name the right one\?$"):
        create_model("deit3_small_patch16_224", pretrained=str(file), depth=2, num_classes=7)
    assert create_model(name, pretrained=str(file), depth=2, num_classes=7).num_classes == 7


def test_keys_with_a_bias_cannot_be_written_for_a_model_without() -> None:
    theirs = two_blocks("vit_tiny_patch16_dinov3_qkvb")
    config = config_of(theirs, "timm's")
    assert isinstance(config, ViTConfig)
    ours = build_model(config)
    load_weights(ours, theirs.state_dict(), "timm's", source_grid=config.grid_size)
    layout = find_layout(theirs.state_dict(), config)
    assert layout is not None
    tensors = ours.state_dict()
    tensors["blocks.0.attention.qkv.bias"] = torch.ones_like(tensors["blocks.0.attention.qkv.bias"])
    from vit.weights.layout import invert_rules

    with pytest.raises(ValueError, match="the keys have a bias, which is not 0"):
        invert_rules(layout, tensors, config)


@pytest.mark.parametrize("name", timm.list_models("vit_pe_*"))
def test_every_perception_encoder_has_a_place_for_its_tensors(name: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name)
    config = config_of(theirs, name)
    layout = find_layout(theirs.state_dict(), config)
    assert layout in LAYOUTS
    compare_names(layout, name, config, theirs.state_dict())


def test_pooling_of_a_perception_encoder_has_its_own_heads_and_reads_the_class_token() -> None:
    core, gigantic = (config_by_name(f"vit_pe_core_{name}") for name in ("base_patch16_224", "gigantic_patch14_448"))
    assert isinstance(core, ViTConfig)
    assert isinstance(gigantic, ViTConfig)
    assert (core.pooling, core.num_heads, core.pool_heads, core.pool_mlp_ratio) == ("map", 12, 8, None)
    assert core.pool_prefix
    assert (gigantic.num_heads, gigantic.pool_heads, gigantic.pool_mlp_ratio) == (16, 8, 4.0)
    assert not gigantic.pool_prefix  # it has no class token


@pytest.mark.parametrize(
    "change", [{"pool_heads": 4}, {"pool_prefix": False}, {"pool_mlp_ratio": 2.0}], ids=["heads", "prefix", "ratio"]
)
def test_each_setting_of_the_pooling_changes_what_it_computes(change: dict[str, Any]) -> None:
    theirs = two_blocks("vit_pe_core_tiny_patch16_384", img_size=64)
    config = config_of(theirs, "timm's")
    if "pool_mlp_ratio" in change:
        with pytest.raises(ValueError, match=r"attention_pool\.feedforward\.fc1"):
            load_weights(build_model(replace(config, **change)), theirs.state_dict(), "timm's")
        return
    ours, images = build_model(replace(config, **change)).eval(), torch.randn(1, 3, 64, 64)
    load_weights(ours, theirs.state_dict(), "timm's")
    with torch.inference_mode():
        expected = theirs(images)
        assert (ours(images) - expected).abs().max() / expected.abs().max() > 1e-3
