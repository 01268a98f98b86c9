"""Capture proves itself, misses nothing, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor, nn

from benchmarks.capture_proof import architectures, prove
from vit import create_model
from vit.analysis.capture import AttentionLayer, capture_attention, capturing


def ours(**options: object) -> Any:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "num_classes": 5,
        "image_size": 32,
        "patch_size": 8,
        "width": 24,
        "depth": 3,
        "num_heads": 2,
    }
    return create_model("vit_tiny_patch16_224", **(settings | options))


def captured(model: nn.Module, images: Tensor) -> list[AttentionLayer]:
    layers: list[AttentionLayer] = []
    with torch.no_grad():
        capture_attention(model, images, layers.append)
    return layers


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_every_layer_in_order_with_its_map_and_nothing_left_behind() -> None:
    model = ours(qk_norm=True, num_registers=2)
    layers = captured(model, IMAGES)
    assert [layer.name for layer in layers] == [f"blocks.{place}.attention" for place in range(3)]
    assert [layer.index for layer in layers] == [0, 1, 2]
    assert layers[0].query.shape == (3, 2, 19, 12)
    attended = layers[1].weights() @ layers[1].value
    output = model.blocks[1].attention.output(rearrange(attended, "b h n d -> b n (h d)"))
    torch.testing.assert_close(output, layers[1].output)
    torch.testing.assert_close(layers[1].finish(attended[:, :, 2:4], slice(2, 4)), layers[1].output[:, 2:4])
    assert hooks_on(model) == 0


def test_a_norm_before_the_outputs_projection_is_computed_too() -> None:
    model = ours(attention_norm=True)
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.output_norm.weight)
    layers = captured(model, IMAGES)
    layer = layers[2]
    torch.testing.assert_close(layer.finish(layer.weights() @ layer.value, slice(None)), layer.output)


def test_the_models_answer_and_mode_are_untouched() -> None:
    model = ours().train()
    with torch.no_grad():
        answer = capture_attention(model, IMAGES, lambda _: None)
        assert model.training
        # Watched, the last block computes all tokens and not only the class token: other products, another rounding.
        torch.testing.assert_close(answer, model.eval()(IMAGES), rtol=1e-5, atol=1e-6)


def test_gradients_flow_through_what_was_captured() -> None:
    layers: list[AttentionLayer] = []
    capture_attention(ours(), IMAGES, layers.append)[:, 0].sum().backward(inputs=[layers[0].output], retain_graph=True)
    assert layers[0].output.grad is not None
    assert layers[0].query.requires_grad


@pytest.mark.parametrize("layer", [0, 2])
def test_a_sabotaged_layer_is_named(layer: int) -> None:
    model = ours()
    attention = model.blocks[layer].attention
    original = attention.forward
    attention.forward = lambda tokens, **options: original(tokens, **options) * 1.001
    with pytest.raises(ValueError, match=rf"blocks\.{layer}\.attention is not valid: the output rebuilt .* differs by"):
        captured(model, IMAGES)
    assert hooks_on(model) == 0


def test_a_wrong_scale_is_seen_in_one_query_of_one_image() -> None:
    model = ours()
    original = model.blocks[0].attention.forward

    def sabotaged(tokens: Tensor, **options: object) -> Tensor:
        output = original(tokens, **options)
        output[1, 7] = original(1.1 * tokens, **options)[1, 7]
        return output

    model.blocks[0].attention.forward = sabotaged
    with pytest.raises(ValueError, match=r"blocks\.0\.attention"):
        captured(model, IMAGES)


def test_hooks_come_off_when_the_consumer_or_the_model_fails() -> None:
    model = ours()

    def fail(layer: AttentionLayer) -> None:
        raise RuntimeError(layer.name)

    with pytest.raises(RuntimeError, match=r"blocks\.0"):
        captured_by(model, fail)
    assert hooks_on(model) == 0
    with pytest.raises(ValueError, match="must divide"):
        captured(model, torch.zeros(1, 3, 30, 30))
    assert hooks_on(model) == 0


def captured_by(model: nn.Module, consume: Callable[[AttentionLayer], None]) -> None:
    with torch.no_grad():
        capture_attention(model, IMAGES, consume)


class ConvolutionalAttention(nn.Conv2d):
    pass


def test_it_never_returns_nothing() -> None:
    with pytest.raises(ValueError, match="no attention was found in this Conv2d"):
        captured(nn.Conv2d(3, 4, 3), IMAGES)
    with pytest.raises(
        ValueError,
        match=r"no attention of a class that can be read.*known are those of timm \(.*transformers \(aimv2, beit",
    ):
        captured(ConvolutionalAttention(3, 4, 3), IMAGES)
    with pytest.raises(ValueError, match="no self-attention was computed"), capturing(ours(), lambda _: None):
        pass


@pytest.mark.parametrize("batch_first", [True, False])
def test_masks_of_torchs_own_module(batch_first: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(12, 3, batch_first=batch_first)
    tokens = torch.randn(5, 5, 12)
    padding = torch.arange(5) >= torch.tensor([5, 4, 3, 2, 5])[:, None]
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    layers: list[AttentionLayer] = []
    with torch.no_grad(), capturing(module.eval(), layers.append):
        module(tokens, tokens, tokens, key_padding_mask=padding, attn_mask=later)
        module(tokens, tokens, tokens, attn_mask=torch.randn(15, 5, 5))
    weights = layers[0].weights()
    assert (weights[1, :, :, 4] == 0).all()
    assert (weights[:, :, 0, 1:] == 0).all()
    assert layers[1].bias is not None


def test_attention_between_two_sequences_is_left_out() -> None:
    module = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    with pytest.raises(ValueError, match="no self-attention was computed"), capturing(module, lambda _: None):
        module(torch.randn(1, 2, 12), torch.randn(1, 5, 12), torch.randn(1, 5, 12))


def test_half_precision_is_proved_with_its_own_tolerance() -> None:
    layers = captured(ours().bfloat16(), IMAGES.bfloat16())
    assert 1e-4 < max(layer.difference for layer in layers) < 5e-2


def test_many_tokens_are_proved_on_some_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.analysis.proof.MAX_WEIGHTS", 400)
    model = ours()
    assert len(captured(model, IMAGES)) == 3
    original = model.blocks[2].attention.forward
    model.blocks[2].attention.forward = lambda tokens, **options: original(tokens, **options).flip(1)
    with pytest.raises(ValueError, match=r"blocks\.2"):
        captured(model, IMAGES)


def timm_vit() -> Any:
    import timm

    torch.manual_seed(0)
    return timm.create_model("test_vit", img_size=80).eval()


class UnknownAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, width)

    def forward(self, tokens: Tensor, **_: object) -> Tensor:
        return self.mix(tokens)


def test_a_block_that_cannot_be_read_is_named() -> None:
    model = timm_vit()
    images = torch.randn(1, 3, 80, 80)
    assert len(captured(model, images)) == len(model.blocks)
    model.blocks[1].attn = UnknownAttention(64)
    with pytest.raises(
        ValueError, match=r"no attention of a class that can be read was computed in blocks\.1 \(Block\)"
    ):
        captured(model, images)
    assert hooks_on(model) == 0


def test_a_block_of_another_class_may_have_no_attention() -> None:
    model: Any = timm_vit()
    images = torch.randn(1, 3, 80, 80)
    model.blocks[1] = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64))
    assert [layer.name for layer in captured(model, images)][:2] == ["blocks.0.attn", "blocks.2.attn"]
    model.blocks[1] = nn.Sequential(nn.LayerNorm(64), UnknownAttention(64))
    with pytest.raises(ValueError, match=r"blocks\.1 \(Sequential\)"):
        captured(model, images)


def attending(module: Any, tokens: Tensor, radius: int | None) -> Tensor:
    """timm's attention, to tokens so near only; None: evenly to all."""
    query, key, value = rearrange(module.qkv(tokens), "b n (k h d) -> k b h n d", k=3, h=module.num_heads)
    places = torch.arange(tokens.shape[1])
    mask = None if radius is None else (places[:, None] - places).abs() <= radius
    query = query * 0 if radius is None else query
    attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return module.proj(rearrange(attended, "b h n d -> b n (h d)"))


@torch.no_grad()
def changed(change: str) -> nn.Module:
    model = timm_vit()
    for block in model.blocks:
        attention = block.attn
        match change:
            case "output bias":
                attention.proj.bias += 1000
            case "value bias":
                attention.qkv.bias[-64:] += 1000
            case "no output":
                attention.proj.weight.zero_()
            case "small":
                attention.qkv.weight *= 1e-2
            case "no queries":
                attention.qkv.weight[:64] = 0
    return model


@pytest.mark.parametrize("radius", [5, None])
@pytest.mark.parametrize("change", ["nothing", "output bias", "value bias", "no output", "small"])
def test_constants_and_small_numbers_hide_no_other_attention(change: str, radius: int | None) -> None:
    model: Any = changed(change)
    images = torch.randn(2, 3, 80, 80)
    for block in model.blocks:
        block.attn.forward = lambda tokens, attention=block.attn, **_: attending(attention, tokens, radius)
    with pytest.raises(
        ValueError, match=r"blocks\.0\.attn is not valid: (the output rebuilt|its map cannot be proved)"
    ):
        captured(model, images)


@pytest.mark.parametrize("change", ["nothing", "small", "no queries"])
def test_faint_and_even_maps_are_proved(change: str) -> None:
    assert len(captured(changed(change), torch.randn(2, 3, 80, 80))) == 6


@pytest.mark.parametrize("change", ["output bias", "no output"])
def test_what_rounding_hides_is_not_called_proved(change: str) -> None:
    with pytest.raises(ValueError, match="its map cannot be proved"):
        captured(changed(change), torch.randn(2, 3, 80, 80))


def test_one_token_has_one_map() -> None:
    module = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    tokens, layers = torch.randn(2, 1, 12), list[AttentionLayer]()
    with torch.no_grad(), capturing(module, layers.append):
        module(tokens, tokens, tokens)
    assert layers[0].weights().unique().tolist() == [1]


@pytest.mark.slow
@pytest.mark.parametrize("name", architectures())
def test_architectures_of_four_libraries(name: str) -> None:
    row = prove(name, architectures()[name])
    assert row["layers"] == 2
    assert row["largest_difference"] < 1e-5
