"""The model's interface: every option has an effect, random numbers depend on the sample alone, sizes, names."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from vit.attention.multihead import SelfAttention
from vit.config import ViTConfig
from vit.config.vit import Backend, FeedForwardKind, Pooling, PositionKind
from vit.layers.block import Block
from vit.models import VisionTransformer
from vit.models.initialization import initialize
from vit.randomness import SampleRandom
from vit.weights.layout import apply_rules, invert_rules
from vit.weights.timm import TIMM

BASE = ViTConfig(image_size=(16, 24), patch_size=(8, 8), num_classes=5, width=24, depth=2, num_heads=2)
RANDOM: dict[str, Any] = dict.fromkeys(
    ("stochastic_depth_rate", "dropout_rate", "attention_dropout_rate", "patch_dropout_rate"), 0.3
)
CHANGES: dict[str, Any] = {
    "image_size": (24, 16),
    "patch_size": (4, 8),
    "num_classes": 6,
    "in_channels": 4,
    "width": 32,
    "depth": 3,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "pooling": "gap",
    "class_token": False,
    "distillation_token": True,
    "distillation_head": False,
    "num_registers": 2,
    "positions": "none",
    "relative_tables": "shared",
    "relative_prefix": True,
    "rope_temperature": 10.0,
    "rope_coordinates": "centred",
    "rope_grid": (5, 7),
    "rope_offset": 1.0,
    "rope_columns_first": True,
    "rope_mixed": True,
    "feedforward": "swiglu",
    "swiglu_multiple": 7,
    "feedforward_norm": True,
    "attention_norm": True,
    "qk_norm": True,
    "qkv_bias": False,
    "proj_bias": False,
    "norm": "rms",
    "embedding_norm": True,
    "pool_prefix": True,
    "pool_heads": 1,
    "pool_mlp_ratio": 3.0,
    "pre_norm": True,
    "final_norm": "pooled",
    "positions_on_prefix": False,
    "positions_on_registers": True,
    "position_resize": "bicubic_corners",
    "representation_width": 7,
    "head_bias": False,
    "layer_scale": 0.5,
    "norm_eps": 0.1,
    "stem": "resnet",
    **dict.fromkeys(RANDOM, 0.5),
    "init": "normal",
    "backend": "matmul",
}
NEEDS: dict[str, dict[str, Any]] = {
    "class_token": {"pooling": "gap"},
    "final_norm": {"pooling": "gap"},
    "distillation_head": {"distillation_token": True},
    "positions_on_registers": {"num_registers": 2},
    **{each.name: {"positions": "rope"} for each in fields(ViTConfig) if each.name.startswith("rope_")},
    **{name: {"positions": "relative"} for name in ("relative_tables", "relative_prefix")},
    "swiglu_multiple": {"feedforward": "swiglu"},
    "pool_prefix": {"pooling": "gap"},
    "pool_heads": {"pooling": "query"},
    "pool_mlp_ratio": {"pooling": "map"},
    "feedforward_norm": {"feedforward": "swiglu"},
}


def fill(model: VisionTransformer, seed: int = 0) -> VisionTransformer:
    """Random numbers everywhere, heads and LayerScale too, so that nothing hides behind a zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def images(config: ViTConfig = BASE, count: int = 2) -> Tensor:
    return torch.randn(count, config.in_channels, *config.image_size, generator=torch.Generator().manual_seed(1))


def result(config: ViTConfig) -> Tensor:
    model = fill(VisionTransformer(config))
    return model(images(config), rng=SampleRandom.at(0, 0, torch.arange(2)))


def shapes(config: ViTConfig) -> dict[str, Any]:
    return {name: parameter.shape for name, parameter in VisionTransformer(config).named_parameters()}


@pytest.mark.parametrize("field", [f.name for f in fields(ViTConfig)])
def test_every_option_has_an_effect(field: str) -> None:
    base = replace(BASE, **NEEDS.get(field, {}))
    changed = replace(base, **{field: CHANGES[field]})
    if field == "init":
        spreads = [
            VisionTransformer(c).get_parameter("blocks.0.feedforward.fc1.weight").std().item() for c in (base, changed)
        ]
        assert spreads[0] > 2 * spreads[1]
    elif field == "backend":
        attention = VisionTransformer(changed).get_submodule("blocks.0.attention")
        assert isinstance(attention, SelfAttention)
        assert attention.backend == "matmul"
        torch.testing.assert_close(result(changed), result(base), atol=1e-3, rtol=1e-3)
    elif field == "position_resize":
        assert torch.equal(result(base), result(changed))
        first, second = (
            fill(VisionTransformer(c))(images(replace(base, image_size=(24, 32)))) for c in (base, changed)
        )
        assert not torch.allclose(first, second, atol=1e-3)
    elif field == "layer_scale":
        models = [VisionTransformer(replace(base, layer_scale=value)) for value in (0.5, 0.1)]
        gammas = [model.get_parameter("blocks.0.scale1.gamma") for model in models]
        assert gammas[0][0] == 0.5
        assert gammas[1][0] == 0.1
        assert shapes(changed) != shapes(base)
    elif shapes(base) == shapes(changed):
        assert not torch.allclose(result(base), result(changed), atol=1e-3)
    else:
        assert result(changed).isfinite().all()


@pytest.mark.parametrize("positions", ["learned_1d", "learned_2d", "sincos_2d", "relative", "rope"])
@pytest.mark.parametrize("pooling", ["cls", "gap", "map"])
def test_positions_and_pooling_give_different_answers(positions: PositionKind, pooling: Pooling) -> None:
    base = replace(BASE, pooling=pooling)
    assert not torch.allclose(result(replace(base, positions=positions)), result(replace(base, positions="none")))
    shuffled = images()[:, :, :, torch.arange(24).roll(8)]
    with_positions, without = (fill(VisionTransformer(replace(base, positions=kind))) for kind in (positions, "none"))
    torch.testing.assert_close(without(images()), without(shuffled), atol=1e-5, rtol=1e-5)
    assert (with_positions(images()) - with_positions(shuffled)).abs().max() > 1e-3


@pytest.mark.parametrize("positions", ["learned_1d", "relative", "rope"])
def test_a_sample_does_not_depend_on_how_the_batch_is_divided(positions: PositionKind) -> None:
    config = replace(BASE, positions=positions, **RANDOM)
    model, batch, rng = fill(VisionTransformer(config)), images(count=6), SampleRandom.at(5, 2, torch.arange(6))
    whole = model(batch, rng=rng)
    halves = [model(batch[part], rng=SampleRandom(rng.state[part])) for part in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(whole, torch.cat(halves), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(whole, model(batch, rng=SampleRandom.at(6, 2, torch.arange(6))), atol=1e-2)
    model.eval()
    assert torch.equal(model(batch), model(batch, rng=rng))


def test_every_random_layer_has_its_own_stream() -> None:
    model = VisionTransformer(replace(BASE, depth=5))
    streams = [m.stream for name, m in model.named_modules() if hasattr(m, "stream") and "pool" not in name]
    assert len(streams) == len(set(streams)) == 2 + 5 * 6


def test_stochastic_depth_grows_to_its_rate() -> None:
    model = VisionTransformer(replace(BASE, depth=5, stochastic_depth_rate=0.4))
    blocks: Any = model.blocks
    assert [round(block.depth1.rate, 6) for block in blocks] == [0.0, 0.1, 0.2, 0.3, 0.4]
    (only,) = VisionTransformer(replace(BASE, depth=1, stochastic_depth_rate=0.4)).blocks
    assert isinstance(only, Block)
    assert only.depth2.rate == 0.0


@pytest.mark.parametrize("with_rng", [True, False])
def test_checkpointing_changes_no_gradient(with_rng: bool) -> None:
    config = replace(BASE, positions="rope", **RANDOM)
    gradients = []
    for checkpointing in (False, True):
        model = fill(VisionTransformer(config))
        model.gradient_checkpointing = checkpointing
        torch.manual_seed(0)
        model(images(), rng=SampleRandom.at(0, 0, torch.arange(2)) if with_rng else None).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    config = replace(BASE, **RANDOM, num_registers=1, positions="rope")
    model, rng = fill(VisionTransformer(config)), SampleRandom.at(0, 0, torch.arange(2))
    torch.testing.assert_close(torch.compile(model)(images(), rng=rng), model(images(), rng=rng), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"init": "normal"},
        {"distillation_token": True, "num_registers": 2},
        {"positions": "learned_2d", "pooling": "map", "qk_norm": True},
        {"positions": "relative", "layer_scale": 0.1, "stem": "resnet"},
        {"pooling": "query", "norm": "rms", "embedding_norm": True, "proj_bias": False, "feedforward": "swiglu"},
        {"pooling": "cls_gap", "representation_width": 7, "head_bias": False},
        {"pooling": "gap", "final_norm": "pooled", "feedforward": "swiglu", "pre_norm": True},
    ],
)
def test_every_parameter_is_initialised(change: dict[str, Any]) -> None:
    model = VisionTransformer(replace(BASE, **change))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    initialize(model, model.config)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_fused_projection_starts_as_three() -> None:
    model = VisionTransformer(replace(BASE, width=64, num_heads=4, depth=1))
    bound = (6 / (64 + 64)) ** 0.5
    for part in model.get_parameter("blocks.0.attention.qkv.weight").chunk(3):
        assert 0.95 * bound < part.abs().max() <= bound
    normal = VisionTransformer(replace(BASE, width=64, num_heads=4, init="normal"))
    weight = normal.get_parameter("blocks.0.feedforward.fc1.weight")
    assert abs(weight.std().item() - 0.02) < 0.001
    assert weight.abs().max() < 0.0456


def test_initialisation_follows_the_seed() -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(VisionTransformer(BASE).get_parameter("blocks.0.attention.qkv.weight"))
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_without_classes_the_features_come_out() -> None:
    model = VisionTransformer(replace(BASE, num_classes=0))
    batch = images()
    torch.testing.assert_close(model(batch), model.pool(model.forward_features(batch)))
    assert model(batch).shape == (2, 24)
    assert model.head_names() == ()


def test_shapes() -> None:
    model = VisionTransformer(replace(BASE, distillation_token=True, num_registers=3))
    assert (model.grid_size, model.num_prefix_tokens, model.num_layers) == ((2, 3), 5, 3)
    assert model.patch_embedding(images()).shape == (2, 6, 24)
    assert model.forward_features(images()).shape == (2, 11, 24)
    assert model.head_names() == ("head", "distillation_head")


@torch.no_grad()
@pytest.mark.parametrize("backend", ["auto", "matmul", "reference"])
def test_no_images_have_no_logits(backend: Backend) -> None:
    assert VisionTransformer(replace(BASE, backend=backend))(torch.empty(0, 3, 16, 24)).shape == (0, 5)


@torch.no_grad()
def test_class_token_with_the_mean_of_the_patches() -> None:
    model = fill(VisionTransformer(replace(BASE, pooling="cls_gap", num_registers=2)))
    tokens = model.forward_features(images())
    expected = torch.cat((tokens[:, 0], tokens[:, 3:].mean(dim=1)), dim=1)
    torch.testing.assert_close(model.pool(tokens), expected)
    torch.testing.assert_close(model(images()), model.head(expected))


@torch.no_grad()
def test_representation_is_a_layer_with_tanh_before_the_head() -> None:
    model = fill(VisionTransformer(replace(BASE, representation_width=7)))
    layer = model.representation
    assert layer is not None
    pooled = (model.forward_features(images())[:, 0] @ layer.weight.T + layer.bias).tanh()
    torch.testing.assert_close(model(images()), model.head(pooled))


@torch.no_grad()
def test_without_a_distillation_head_the_class_token_is_pooled() -> None:
    model = fill(VisionTransformer(replace(BASE, distillation_token=True, distillation_head=False)))
    tokens = model.forward_features(images())
    torch.testing.assert_close(model(images()), model.head(tokens[:, 0]))
    assert model.head_names() == ("head",)
    with pytest.raises(ValueError, match=r"separate_heads"):
        model(images(), separate_heads=True)


@pytest.mark.parametrize("feedforward", ["gelu_tanh", "quick_gelu"])
def test_pooling_by_attention_has_the_blocks_activation(feedforward: FeedForwardKind) -> None:
    base = replace(BASE, pooling="map", depth=1, feedforward=feedforward)
    model = fill(VisionTransformer(base))
    block: Any = model.blocks[0]
    pool: Any = model.attention_pool
    assert pool.feedforward.activation is block.feedforward.activation


def test_separate_heads_need_two() -> None:
    with pytest.raises(ValueError, match=r"separate_heads.*model.distillation_token"):
        VisionTransformer(BASE)(images(), separate_heads=True)


def test_a_size_that_the_patch_does_not_divide() -> None:
    with pytest.raises(ValueError, match=r"model.image_size: \(16, 20\).*patch width 8.*nearest: 16 or 24"):
        VisionTransformer(BASE)(torch.zeros(1, 3, 16, 20))


def test_layers_and_decay() -> None:
    model = VisionTransformer(
        replace(BASE, distillation_token=True, num_registers=1, layer_scale=0.1, positions="learned_2d", pre_norm=True)
    )
    layers = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    expected = {
        "embedding.projection.weight": 0,
        "class_token": 0,
        "register_tokens": 0,
        "positions.rows": 0,
        "pre_norm.weight": 0,
        "blocks.0.norm1.weight": 1,
        "blocks.1.feedforward.fc1.weight": 2,
        "norm.weight": 3,
        "head.weight": 3,
        "distillation_head.bias": 3,
    }
    assert expected.items() <= layers.items()
    assert set(layers.values()) == {0, 1, 2, 3}
    decayed = {name for name, _ in model.named_parameters()} - model.no_weight_decay()
    assert decayed == {name for name in layers if name.endswith("weight") and "norm" not in name}


@pytest.mark.parametrize("pooling", ["cls", "gap", "map"])
def test_layers_are_those_of_maes_fine_tuning(pooling: Pooling) -> None:
    """`get_layer_id_for_vit` of facebookresearch/mae, on timm's names."""
    config = replace(BASE, pooling=pooling, final_norm="pooled" if pooling == "gap" else "tokens")
    model = VisionTransformer(config)
    names = invert_rules(TIMM, model.state_dict(), config)
    for name in names.tensors:
        theirs = 0 if name in ("cls_token", "pos_embed") or name.startswith("patch_embed") else config.depth + 1
        if name.startswith("blocks"):
            theirs = int(name.split(".")[1]) + 1
        (ours, *_) = apply_rules(TIMM, {name: names.tensors[name]}, config).tensors
        assert model.layer_of(ours) == theirs, name


def test_pooling_query_is_not_decayed() -> None:
    assert "attention_pool.probe" in VisionTransformer(replace(BASE, pooling="map")).no_weight_decay()


def test_the_heads_input_is_that_of_one_head() -> None:
    model = VisionTransformer(ViTConfig(image_size=(8, 8), patch_size=(4, 4), width=8, depth=1, num_heads=1))
    tokens = torch.zeros(1, 5, 8)
    with pytest.raises(ValueError, match="separate_heads: True is not valid"):
        model.forward_head(tokens, pre_logits=True, separate_heads=True)
