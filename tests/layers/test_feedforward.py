"""Feed-forward layers by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vit.config import ViTConfig
from vit.config.vit import FeedForwardKind
from vit.layers.feedforward import FeedForward, SwiGLU, build_feedforward


def test_gelu_is_the_exact_one() -> None:
    layer, x = FeedForward(1, 1, 0.0, 0), 1.3
    with torch.no_grad():
        for linear in (layer.fc1, layer.fc2):
            linear.weight.fill_(1)
            linear.bias.zero_()
    expected = x * 0.5 * (1 + math.erf(x / math.sqrt(2)))
    assert math.isclose(layer(torch.tensor([[[x]]])).item(), expected, rel_tol=1e-6)


APPROXIMATE = {
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_other_activations_by_hand(kind: FeedForwardKind) -> None:
    layer, x = build_feedforward(ViTConfig(width=1, num_heads=1, mlp_ratio=1, feedforward=kind), 0), -0.7
    with torch.no_grad():
        for linear in (layer.fc1, layer.fc2):
            linear.weight.fill_(1)
            linear.bias.zero_()
    assert math.isclose(layer(torch.tensor([[[x]]])).item(), APPROXIMATE[kind](x), rel_tol=1e-5)


def test_swiglu_by_hand_and_its_size() -> None:
    layer, x = SwiGLU(6, 24, 0.0, 0), torch.randn(2, 3, 6)
    gate = layer.gate(x)
    torch.testing.assert_close(layer(x), layer.fc2(gate * gate.sigmoid() * layer.fc1(x)))
    assert layer.gate.out_features == 16
    plain, gated = FeedForward(96, 384, 0.0, 0), SwiGLU(96, 384, 0.0, 0)
    counts = [sum(p.numel() for p in m.parameters()) for m in (plain, gated)]
    assert abs(counts[0] / counts[1] - 1) < 0.01


def test_dropout_in_both_places() -> None:
    torch.manual_seed(0)
    layer, x = FeedForward(6, 24, 0.5, 0), torch.randn(2, 3, 6)
    assert (layer(x) == 0).any()
    assert not torch.equal(layer(x), layer(x))
    assert layer.hidden_dropout.stream != layer.dropout.stream


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "quick_gelu", "swiglu"])
def test_inference_mode_changes_no_number(kind: FeedForwardKind) -> None:
    layer = build_feedforward(ViTConfig(width=6, num_heads=1, feedforward=kind), 0).eval()
    x = torch.randn(2, 5, 6)
    before = x.clone()
    with torch.inference_mode():
        found = layer(x)
    torch.testing.assert_close(found, layer(x).detach(), rtol=0, atol=0)
    assert torch.equal(x, before)


def test_a_replaced_forward_is_not_overwritten_in_inference_mode() -> None:
    layer = build_feedforward(ViTConfig(width=6, num_heads=1), 0).eval()
    x, seen = torch.randn(2, 5, 6), list[Tensor]()
    own = layer.fc1.forward

    def forward(input: Tensor) -> Tensor:
        seen.append(own(input))
        return seen[-1]

    layer.fc1.forward = forward  # type: ignore[method-assign]
    with torch.inference_mode():
        layer(x)
    torch.testing.assert_close(seen[0], own(x).detach())


def test_a_hooked_output_is_not_overwritten_in_inference_mode() -> None:
    layer = build_feedforward(ViTConfig(width=6, num_heads=1), 0).eval()
    x, seen = torch.randn(2, 5, 6), []
    layer.fc1.register_forward_hook(lambda _module, _args, output: seen.append(output))
    with torch.inference_mode():
        layer(x)
    torch.testing.assert_close(seen[0], torch.nn.functional.linear(x, layer.fc1.weight, layer.fc1.bias).detach())
