"""The table of layers in eight bits: each one alone, compared with the float32 model."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from vit.analysis.quantization import ALL, quantization_sensitivity
from vit.config import ViTConfig
from vit.figures import plot_quantization_sensitivity
from vit.layers.quantized import QuantizedLinear, quantizes_here
from vit.models import VisionTransformer
from vit.models.inference import for_inference, quantizable_layers

pytestmark = pytest.mark.skipif(not quantizes_here(), reason="no x86 processor, or a torch without oneDNN")
IMAGES, LABELS = torch.rand(24, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 3


def small() -> VisionTransformer:
    torch.manual_seed(0)
    config = ViTConfig(image_size=(16, 16), patch_size=(8, 8), width=16, depth=2, num_heads=2, num_classes=3)
    model = VisionTransformer(config)
    nn.init.normal_(model.get_parameter("head.weight"), std=0.5)
    return model.eval()


def test_each_row_is_one_layer_alone_and_the_last_is_all() -> None:
    model = small()
    seen: list[list[str]] = []

    def logits(each: nn.Module) -> Tensor:
        seen.append([name for name, part in each.named_modules() if isinstance(part, QuantizedLinear)])
        return each(IMAGES)

    layers = quantizable_layers(model)
    progress: list[tuple[int, int]] = []
    before = deepcopy(model.state_dict())
    found = quantization_sensitivity(model, logits, LABELS, progress=lambda *done: progress.append(done))
    assert found.layers == [*layers, ALL]
    assert seen == [[], *([name] for name in layers), layers]
    assert progress[-1] == (10, 10)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_numbers_are_those_of_the_models() -> None:
    model = small()
    found = quantization_sensitivity(model, lambda each: each(IMAGES), LABELS)
    with torch.inference_mode():
        whole, quantized = for_inference(model)(IMAGES), for_inference(model, "int8")(IMAGES)
    assert found.whole == pytest.approx(float((whole.argmax(1) == LABELS).double().mean()))
    assert float(found.quantized[-1]) == pytest.approx(float((quantized.argmax(1) == LABELS).double().mean()))
    assert float(found.agreement[-1]) == pytest.approx(float((whole.argmax(1) == quantized.argmax(1)).double().mean()))
    centred, other = whole - whole.mean(1, keepdim=True), quantized - quantized.mean(1, keepdim=True)
    assert float(found.logit_change[-1]) == pytest.approx(
        float(((other - centred).norm(dim=1) / centred.norm(dim=1)).mean()), rel=1e-4
    )
    assert torch.all(found.interval[0] <= found.lost)
    assert torch.all(found.lost <= found.interval[1])


def test_a_layer_that_eight_bits_spoil_is_named() -> None:
    """One enormous weight in each channel leaves nothing of the others; its column reads what is always zero."""
    model = small()
    name = "blocks.1.feedforward.fc2"
    with torch.no_grad():
        model.get_parameter("blocks.1.feedforward.fc1.weight")[0] = 0
        model.get_parameter("blocks.1.feedforward.fc1.bias")[0] = 0
        model.get_parameter(f"{name}.weight")[:, 0] = 1e3
    found = quantization_sensitivity(model, lambda each: each(IMAGES), LABELS)
    assert found.most_sensitive(1) == [name]
    assert f"| {name} |" in found.table()


@pytest.mark.parametrize("shape", [(24,), (23, 3)])
def test_other_logits_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"logits\(model\): .* it must be \(n, classes\) for the 24 labels"):
        quantization_sensitivity(small(), lambda _: torch.zeros(shape), LABELS)


def test_names_of_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match="layers: "):
        plot_quantization_sensitivity(["layer1.conv"], [0.1], [0.0], interval=[[0.0], [0.0]])
