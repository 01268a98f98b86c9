"""Costs against formulas written from the architecture, published counts, and a real backward pass."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vit.config import ModelConfig, ResNetConfig, ViTConfig
from vit.config.vit import Backend, PositionKind
from vit.evaluation.cost import (
    activation_memory,
    count_parameters,
    multiply_adds,
    training_memory,
)
from vit.models import Classifier, build_model, resolve

SMALL = ViTConfig(
    image_size=(24, 40), patch_size=(8, 8), num_classes=7, width=24, depth=2, num_heads=3, backend="matmul"
)


def formula(config: ViTConfig) -> int:
    """The products of a ViT's forward pass, counted by hand from ViT, eq. 1 to 4."""
    patches = math.prod(config.grid_size)
    tokens, c = patches + config.num_prefix_tokens, config.width
    hidden = round(c * config.mlp_ratio)
    embedding = patches * 3 * math.prod(config.patch_size) * c
    projections = tokens * c * 3 * c + tokens * c * c
    products = 2 * tokens * tokens * c
    feedforward = 2 * tokens * c * hidden
    heads = c * config.num_classes * (2 if config.distillation_token else 1)
    return embedding + config.depth * (projections + products + feedforward) + heads


def memory(config: ViTConfig | ResNetConfig, batch_size: int, **options: Any) -> dict[str, int]:
    return training_memory(on_meta(config), config.image_size, batch_size=batch_size, **options)


def on_meta(config: ViTConfig | ResNetConfig) -> Classifier:
    with torch.device("meta"):
        return build_model(config)


def test_patches_that_training_leaves_out_are_not_counted() -> None:
    """Half of 16 patches, rotary positions; the modes of the modules stay as they were."""
    config = ViTConfig(image_size=(16, 16), patch_size=(4, 4), positions="learned_1d_rope", patch_dropout_rate=0.5)
    model = build_model(config).train()
    whole, half = (multiply_adds(model, (16, 16), patch_dropout=left_out) for left_out in (False, True))
    c, depth = config.width, config.depth
    a_block = {n: 12 * n * c * c + 2 * n * n * c for n in (9, 17)}  # with the class token
    assert whole - half == depth * (a_block[17] - a_block[9])
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("name", "gmacs", "parameters"),
    [
        ("vit_tiny_patch16_224", 1.25, 5_717_416),
        ("vit_small_patch16_224", 4.60, 22_050_664),
        ("vit_base_patch16_224", 17.56, 86_567_656),
        ("vit_large_patch16_224", 61.55, 304_326_632),
        ("resnet18", 1.81, 11_689_512),
        ("resnet50", 4.09, 25_557_032),
        ("resnet101", 7.80, 44_549_160),
        ("resnet152", 11.51, 60_192_808),
        ("wide_resnet50_2", 11.40, 68_883_240),
        ("resnext50_32x4d", 4.23, 25_028_904),
        ("resnext101_32x8d", 16.41, 88_791_336),
        ("resnext101_64x4d", 15.46, 83_455_272),
        ("resnet50d", 4.33, 25_576_264),
        ("resnetv2_50x1_bit", 4.09, 25_549_352),
    ],
)
def test_published_counts(name: str, gmacs: float, parameters: int) -> None:
    model = on_meta(resolve(ModelConfig(name=name)))
    assert round(multiply_adds(model, (224, 224)) / 1e9, 2) == gmacs
    assert count_parameters(model) == parameters


@pytest.mark.parametrize(
    ("name", "millions", "parameters"),
    [
        # parameters: He et al. 2016, table 6; multiply-adds of 56 and 110 layers: HRank (Lin et al. 2020), table 1
        ("resnet20", 40.55, 0.27),
        ("resnet32", 68.86, 0.46),
        ("resnet44", 97.17, 0.66),
        ("resnet56", 125.49, 0.85),
        ("resnet110", 252.89, 1.7),
    ],
)
def test_published_counts_on_cifar(name: str, millions: float, parameters: float) -> None:
    model = on_meta(resolve(ModelConfig(name=name), num_classes=10))
    assert round(multiply_adds(model, (32, 32)) / 1e6, 2) == millions
    assert round(count_parameters(model) / 1e6, 1 if parameters == 1.7 else 2) == parameters


@pytest.mark.parametrize("backend", ["auto", "reference", "matmul", "sdpa", "flex", "triton"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_registers": 3, "pooling": "gap"},
        {"class_token": False, "pooling": "gap", "positions": "rope"},
        {"distillation_token": True},
        {"positions": "relative"},
        {"qk_norm": True, "layer_scale": 0.1, "dropout_rate": 0.5, "patch_dropout_rate": 0.5},
    ],
)
def test_the_formula_whatever_the_backend(backend: str, changes: dict[str, Any]) -> None:
    config = replace(SMALL, **changes)
    model = build_model(config)
    module: Any
    for module in model.modules():
        if hasattr(module, "backend"):
            module.backend = backend  # two of them are no settings, and are chosen by calls of attend only
    assert multiply_adds(model, config.image_size) == formula(config)


@pytest.mark.parametrize("positions", ["learned_1d", "learned_2d", "sincos_2d", "relative", "rope", "none"])
def test_counting_leaves_the_model_as_it_was(positions: PositionKind) -> None:
    model = build_model(replace(SMALL, positions=positions, width=48)).train()
    images = torch.rand(2, 3, 24, 40)
    expected = model(images)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    multiply_adds(model, (24, 40))
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(model(images), expected)


def test_another_image_size_is_counted_as_such() -> None:
    model = build_model(SMALL)
    larger = replace(SMALL, image_size=(48, 40))
    assert multiply_adds(model, (48, 40)) == formula(larger)


def test_any_module_of_torch_is_counted() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8)
    config = resolve(ModelConfig(name="vit_tiny_patch16_224", image_size=32, patch_size=8))
    assert isinstance(config, ViTConfig)
    assert multiply_adds(model, (32, 32)) == formula(config)


class Standardized(nn.Module):
    """A user's module, whose constants are no buffers and so not on the meta device."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.tensor([0.5, 0.4, 0.3]).reshape(3, 1, 1)
        self.layer = nn.Conv2d(3, 5, 2, stride=2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[0] == int(self.mean.shape[0]) - 2
        return self.layer(images - self.mean).mean(dim=(2, 3))


def test_a_module_that_needs_its_device_is_counted_there() -> None:
    assert multiply_adds(Standardized(), (8, 8)) == 16 * 5 * 12


def test_other_libraries_vits_have_the_same_count() -> None:
    from torchvision.models import VisionTransformer
    from transformers import Dinov2Config, Dinov2ForImageClassification, ViTForImageClassification
    from transformers import ViTConfig as HFConfig

    sizes: dict[str, Any] = {
        "num_labels": 7,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "image_size": 32,
        "patch_size": 8,
    }
    config = replace(SMALL, image_size=(32, 32), num_classes=7)
    expected = formula(config)
    torchvision = VisionTransformer(32, 8, 2, 3, 24, 96, num_classes=7)
    hf = ViTForImageClassification(HFConfig(**sizes, intermediate_size=96))
    dino = Dinov2ForImageClassification(Dinov2Config(**sizes))
    assert multiply_adds(torchvision, (32, 32)) == multiply_adds(hf, (32, 32)) == expected
    # its head reads the class token beside the mean of the patches
    assert multiply_adds(dino, (32, 32)) == expected + 24 * 7


def test_a_convolution_in_groups_by_hand() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 12, 5, stride=2, groups=3, padding=2))
    assert multiply_adds(model, (8, 10)) == 8 * 10 * 6 * 3 * 9 + 4 * 5 * 12 * 2 * 25


def test_a_shared_parameter_counts_once() -> None:
    shared = nn.Linear(3, 5)
    assert count_parameters(nn.Sequential(shared, nn.ReLU(), shared)) == 20


def test_saved_numbers_of_two_layers_by_hand() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3 * 2 * 2, 5), nn.Linear(5, 4)

        def forward(self, images: Tensor, rng: Any) -> Tensor:  # noqa: ARG002
            return self.second(torch.relu(self.first(images.flatten(1))))

    # each layer keeps its input, which for the second is also what the rectifier keeps; cross-entropy keeps the
    # log-probabilities and the targets; the second layer's weights are kept too, but are no activations
    found = activation_memory(Layer(), (2, 2), 7)  # type: ignore[arg-type]
    assert found == 4 * 7 * (3 * 2 * 2 + 5 + 4 + 4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("backend", ["matmul", "sdpa"])
@pytest.mark.parametrize(
    "config",
    [
        replace(SMALL, stochastic_depth_rate=0.2, dropout_rate=0.1, layer_scale=0.1),
        replace(SMALL, positions="rope", pooling="gap", feedforward="swiglu"),
        ResNetConfig(depth=18, width=8, stem="cifar", image_size=(16, 24), num_classes=5),
    ],
)
def test_the_estimate_is_what_a_real_pass_keeps(
    config: ResNetConfig | ViTConfig, backend: Backend, precision: str
) -> None:
    if isinstance(config, ViTConfig):
        config = replace(config, backend=backend)
    elif backend == "sdpa":
        return
    real = activation_memory(build_model(config), config.image_size, 4, precision=precision)
    found = memory(config, 4, precision=precision)["activations"]
    assert found == pytest.approx(real, rel=0 if isinstance(config, ViTConfig) else 0.01, abs=0)
    assert real > 0


def test_memory_by_hand() -> None:
    config = replace(SMALL, num_classes=0, depth=1)
    numbers = count_parameters(build_model(config))
    matrices = 24 * 72 + 24 * 24 + 2 * 24 * 96
    found = {name: memory(config, 2, optimizer=name) for name in ("adamw", "lamb", "sgd", "muon")}
    assert found["adamw"]["weights"] == found["adamw"]["gradients"] == 4 * numbers
    assert found["adamw"]["optimizer"] == found["lamb"]["optimizer"] == 8 * numbers
    assert found["sgd"]["optimizer"] == 4 * numbers
    assert found["muon"]["optimizer"] == 8 * numbers - 4 * matrices
    assert found["adamw"]["ema"] == 0
    assert memory(config, 2, ema=True)["ema"] == 4 * numbers


def test_every_setting_moves_the_activations() -> None:
    plain = memory(SMALL, 8)
    twice = memory(SMALL, 16)
    assert twice["activations"] > 1.9 * plain["activations"]
    assert twice["weights"] == plain["weights"]
    assert memory(SMALL, 8, precision="bf16")["activations"] < 0.8 * plain["activations"]
    again = memory(SMALL, 8, gradient_checkpointing=True)
    assert again["activations"] < 0.5 * plain["activations"]
    model = on_meta(SMALL).requires_grad_(requires_grad=False)
    model.head.requires_grad_()
    frozen = training_memory(model, SMALL.image_size, batch_size=8)
    assert frozen["activations"] < 0.2 * plain["activations"]
    assert frozen["gradients"] == 4 * 25 * 7
    assert frozen["optimizer"] == 8 * 25 * 7
    automatic = replace(SMALL, backend="auto")
    on_cpu, on_cuda = (memory(automatic, 8, precision="bf16", device_type=d) for d in ("cpu", "cuda"))
    assert on_cuda["activations"] < on_cpu["activations"]


def test_a_huge_model_is_planned_without_its_memory() -> None:
    config = resolve(ModelConfig(name="vit_huge_patch14_224"))
    sizes = memory(config, 4096, precision="bf16", device_type="cuda")
    assert sizes["weights"] == pytest.approx(4 * 632e6, rel=0.01)
    assert sizes["activations"] > 2**40
