"""Inference-only copies of models."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vit import create_model, for_inference
from vit.config import BertConfig
from vit.layers.packed import PackedLinear
from vit.models import inference
from vit.models.model import Model
from vit.models.text_encoder import TextEncoder

TINY: dict[str, Any] = {
    "name": "vit",
    "image_size": 32,
    "patch_size": 8,
    "width": 24,
    "depth": 2,
    "num_heads": 3,
    "num_classes": 5,
}
MODELS: dict[str, dict[str, Any]] = {
    "class token": TINY,
    "rotary": TINY | {"pooling": "gap", "class_token": False, "positions": "rope"},
    "map": TINY | {"pooling": "map", "qk_norm": True, "feedforward": "swiglu", "num_registers": 2, "layer_scale": 0.1},
    "ResNet": {"name": "resnet18", "num_classes": 5},
}
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture
def _packing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "packing_is_faster", lambda _: True)


def build(name: str = "class token") -> Model:
    torch.manual_seed(0)
    model = create_model(**MODELS[name]).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def images() -> Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def kinds(model: nn.Module) -> list[type]:
    return [type(module) for module in model.modules()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_outputs_equal_the_models(name: str, dtype: torch.dtype) -> None:
    model = build(name)
    answer = for_inference(model, dtype)(images().to(dtype))
    expected = model.eval()(images())
    assert answer.dtype == dtype
    assert not answer.requires_grad
    tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-5
    assert (answer.float() - expected).abs().max() < tolerance * expected.abs().max()


@needs_onednn
@pytest.mark.usefixtures("_packing")
@pytest.mark.parametrize("name", MODELS)
def test_packed_outputs_equal_the_models(name: str) -> None:
    model = build(name)
    inference_copy = for_inference(model)
    assert not any(isinstance(module, nn.Linear) for module in inference_copy.modules())
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert kinds(inference_copy).count(PackedLinear) == len(linear) > 0
    expected = model.eval()(images())
    assert (inference_copy(images()) - expected).abs().max() < 1e-5 * expected.abs().max()


@needs_onednn
@pytest.mark.usefixtures("_packing")
def test_packed_only_if_requested() -> None:
    assert PackedLinear not in kinds(for_inference(build(), packed=False))
    inference_copy = for_inference(build())
    with pytest.raises(ValueError, match="model: it is packed or of eight bits already; give the original model"):
        for_inference(inference_copy)
    with torch.device("meta"):
        empty = create_model(**TINY)
    assert PackedLinear not in kinds(for_inference(empty))


def test_the_original_model_is_unchanged() -> None:
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inference_copy = for_inference(model, torch.bfloat16)
    assert model.training
    assert not any(module.training for module in inference_copy.modules())
    assert all(parameter.requires_grad and parameter.dtype == torch.float32 for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, "bf16"])
def test_unsupported_types_are_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"dtype: .* is not valid: choose from torch.float32, torch.bfloat16"):
        for_inference(build(), dtype)


@pytest.mark.parametrize("packed", [True, False])
def test_images_of_another_type_are_refused_in_one_line(packed: bool) -> None:
    inference_copy = for_inference(build(), torch.bfloat16, packed=packed)
    remedy = r"^images: torch.float32 is not valid: .* torch.bfloat16; give it images.to\(torch.bfloat16\)$"
    entry: Any
    for entry in (inference_copy, inference_copy.forward_features, lambda pixels: inference_copy(images=pixels)):
        with pytest.raises(ValueError, match=remedy):
            entry(images())
    with pytest.raises(ValueError, match=r"^images: torch.uint8 is not valid: they must be normalised"):
        inference_copy(images().byte())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match=r"^images: torch.float64 is not valid"):
        build()(images().double())
    answers = for_inference(build("ResNet"), torch.float64, packed=packed)
    with pytest.raises(ValueError, match=r"^images: torch.float32 is not valid: the model's weights are torch.float64"):
        answers(images())


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (lambda pixels: pixels[0], "; for one image, images[None]"),
        (lambda pixels: pixels.movedim(1, 3), "; for channels last, images.movedim(3, 1)"),
        (lambda pixels: pixels[:, :1], ""),
        (lambda pixels: pixels[:, :, None], ""),
    ],
)
@pytest.mark.parametrize("family", ["class token", "ResNet"])
def test_images_of_another_shape_are_refused_in_one_line(
    wrong: Callable[[Tensor], Tensor], rule: str, family: str
) -> None:
    model, pixels = build(family), wrong(images())
    said = re.escape(f"images: the shape {tuple(pixels.shape)} is not valid: it must be b 3 H W{rule}")
    entry: Any
    for entry in (model, model.forward_features):
        with pytest.raises(ValueError, match=f"^{said}$"):
            entry(pixels)


@pytest.mark.parametrize("family", ["class token", "ResNet"])
def test_an_array_is_refused(family: str) -> None:
    with pytest.raises(ValueError, match=r"^images: ndarray is not valid: it must be a tensor, b 3 H W$"):
        build(family)(images().numpy())


def test_token_ids_are_accepted_in_any_type() -> None:
    config = BertConfig(vocabulary_size=11, width=12, depth=2, num_heads=3, hidden_width=17, max_length=7)
    tokens, lengths = torch.arange(10).view(2, 5), torch.tensor([5, 2])
    assert for_inference(TextEncoder(config), torch.bfloat16)(tokens, lengths).dtype == torch.bfloat16
