"""AIMv2: timm's, Apple's and transformers' models, computed by ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from tests.weights.hf_models import MLP, TEXT, relative
from tests.weights.proof import compare_names
from tests.weights.test_eva import largest_difference, two_blocks
from vit.config import ViTConfig
from vit.hub import create_model, open_model
from vit.layers.norm import build_norm
from vit.layers.pooling import QueryPool
from vit.libraries import NoCounterpart
from vit.libraries.timm import config_by_name
from vit.libraries.timm_reading import config_of
from vit.libraries.timm_writing import build_timm
from vit.models import VisionTransformer, build_model
from vit.models.initialization import perturb_weights
from vit.weights.aimv2 import APPLE, TIMM_AIMV2
from vit.weights.convert import convert_model, is_round_trip_exact, verify_conversion
from vit.weights.layout import invert_rules
from vit.weights.layouts import find_layout
from vit.weights.loader import load_weights

NAME = "aimv2_large_patch14_224"
SMALL = ViTConfig(
    image_size=(32, 48),
    patch_size=(8, 8),
    width=128,
    depth=2,
    num_heads=1,
    mlp_ratio=2.75,
    num_classes=0,
    pooling="gap",
    class_token=False,
    norm="rms",
    embedding_norm=True,
    feedforward="swiglu",
    qkv_bias=False,
    proj_bias=False,
    norm_eps=1e-5,
    init="normal",
)


def small(**changes: Any) -> VisionTransformer:
    torch.manual_seed(0)
    model = build_model(ViTConfig(**{**vars(SMALL), **changes})).eval()
    assert isinstance(model, VisionTransformer)
    perturb_weights(model)
    return model


@pytest.mark.parametrize("name", [NAME, pytest.param("aimv2_huge_patch14_336", marks=pytest.mark.slow)])
def test_logits_are_timms(name: str) -> None:
    theirs = two_blocks(name)
    tensors, config = theirs.state_dict(), config_of(theirs, name)
    assert find_layout(tensors, config) is TIMM_AIMV2
    assert is_round_trip_exact(TIMM_AIMV2, tensors, config)
    assert TIMM_AIMV2.config(tensors) == config
    assert largest_difference(theirs, torch.randn(2, 3, *config.image_size)) < 2e-6


@pytest.mark.parametrize("name", timm.list_models("aimv2_*"))
def test_names_and_shapes_of_every_model(name: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name)
    config = config_of(theirs, name)
    compare_names(TIMM_AIMV2, name, config, theirs.state_dict())
    assert TIMM_AIMV2.config(theirs.state_dict()) == config


def test_another_size_is_timms() -> None:
    theirs = two_blocks(NAME, img_size=(56, 98), embed_dim=256, num_heads=2)
    assert largest_difference(theirs, torch.randn(2, 3, 56, 98)) < 2e-6


def test_a_file_of_apples_names_tells_its_architecture(tmp_path: Path) -> None:
    model = small()
    tensors = invert_rules(APPLE, model.state_dict(), model.config)
    assert not tensors.unexpected
    assert {"preprocessor.patchifier.norm.weight", "trunk.blocks.1.mlp.fc3.weight", "trunk.post_trunk_norm.weight"} <= (
        tensors.tensors.keys()
    )
    square = build_model(ViTConfig(**{**vars(SMALL), "image_size": (32, 32)})).eval()
    theirs = invert_rules(APPLE, square.state_dict(), square.config).tensors
    save_file(theirs, tmp_path / "model.safetensors")
    ours = create_model(pretrained=str(tmp_path / "model.safetensors")).eval()
    images = torch.randn(2, 3, 32, 32)
    assert APPLE.reference is not None
    with torch.inference_mode():
        assert relative(ours(images), APPLE.reference(square.config, theirs)(images)) < 2e-6
    assert is_round_trip_exact(APPLE, theirs, square.config)


def test_both_ways_to_timm_are_verified() -> None:
    conversion = convert_model(small(num_classes=7), "timm")
    assert conversion.layout is TIMM_AIMV2
    assert list(verify_conversion(conversion))[-1] == "round trip: bitwise"


@pytest.mark.parametrize("target", ["torchvision", "npz"])
def test_other_targets_have_no_such_model(target: str) -> None:
    with pytest.raises(NoCounterpart, match=r"no model with model\."):
        convert_model(small(num_classes=7, image_size=(32, 32)), target)


def test_the_image_tower_of_images_and_text(tmp_path: Path) -> None:
    from transformers import Aimv2Config, Aimv2Model

    torch.manual_seed(0)
    vision = MLP | {"intermediate_size": 104}
    theirs = Aimv2Model(Aimv2Config(vision_config=vision, text_config=TEXT, projection_dim=20)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    theirs.save_pretrained(tmp_path)
    opened = open_model(str(tmp_path))
    assert opened.implementation == "vit"
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = theirs.get_image_features(pixel_values=images).pooler_output
        assert relative(opened.model(images), expected) < 2e-6


def test_fixed_sines_are_computed_by_transformers(tmp_path: Path) -> None:
    from transformers import Aimv2VisionConfig, Aimv2VisionModel

    torch.manual_seed(0)
    theirs = Aimv2VisionModel(Aimv2VisionConfig(**MLP, is_native=True)).eval()
    theirs.save_pretrained(tmp_path)
    opened = open_model(str(tmp_path))
    assert opened.implementation == "transformers"
    assert "is_native: True is not valid: only False is supported" in opened.reason
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(opened.model(images), theirs(pixel_values=images).pooler_output)


def test_query_pooling_by_hand() -> None:
    """Each head's part of the query scores the tokens' keys; no projection of the query, no feed-forward layer."""
    model = small(pooling="query", num_heads=4, pool_heads=2)
    pool, tokens = model.attention_pool, torch.randn(2, 5, 128)
    assert isinstance(pool, QueryPool)
    query, key, value = pool.probe[0, 0], tokens @ pool.key.weight.T, tokens @ pool.value.weight.T
    parts = []
    for part in (slice(0, 64), slice(64, 128)):
        weights = (key[..., part] @ query[part] / 8).softmax(dim=1)
        parts.append((weights[..., None] * value[..., part]).sum(dim=1))
    expected = torch.cat(parts, dim=1) @ pool.output.weight.T + pool.output.bias
    torch.testing.assert_close(pool(tokens), expected, atol=1e-5, rtol=1e-5)


def test_root_mean_square_norm_by_hand() -> None:
    norm = build_norm(ViTConfig(width=2, num_heads=1, norm="rms", norm_eps=1e-30))
    assert isinstance(norm, nn.RMSNorm)
    torch.testing.assert_close(norm(torch.tensor([3.0, 4.0])), torch.tensor([3.0, 4.0]) / 12.5**0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool_heads": 2}, r"model\.pool_heads: 2 .* only with model\.pooling 'map' or 'query'"),
        ({"pool_mlp_ratio": 2.0, "pooling": "query"}, r"model\.pool_mlp_ratio: 2\.0 .* only with model\.pooling 'map'"),
        ({"pool_prefix": True}, r"model\.pool_prefix: True .* the model has no prefix tokens"),
        ({"pool_heads": 3, "pooling": "query"}, r"model\.pool_heads: 3 .* must divide model\.width"),
    ],
)
def test_settings_without_effect_are_errors(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ViTConfig(**{**vars(SMALL), **change})


def test_built_timm_is_its_own() -> None:
    with torch.device("meta"):
        own = timm.create_model(NAME, depth=2).state_dict()
        built = build_timm(config_by_name(NAME, depth=2), gate_apart=True).state_dict()  # type: ignore[arg-type]
    assert {name: tensor.shape for name, tensor in own.items()} == {n: t.shape for n, t in built.items()}


def test_positions_of_another_grid_are_loaded() -> None:
    theirs = two_blocks(NAME, embed_dim=256, num_heads=2)
    config = config_of(theirs, NAME)
    ours = build_model(ViTConfig(**{**vars(config), "image_size": (112, 112)}))
    report = load_weights(ours, theirs.state_dict(), NAME, source_grid=config.grid_size)
    assert report.resized == {"positions.grid": "16×16 → 8×8"}
