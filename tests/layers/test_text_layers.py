"""Layers of text models against torch's, and the draws of dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vit.attention import masks
from vit.config.text_model import Activation, NormPlacement
from vit.layers.text_layers import DECODER_STREAMS, ENCODER_STREAMS, DecoderLayer, EncoderLayer
from vit.randomness import SampleRandom
from vit.tasks.translation.config import TranslatorConfig

B, N, M, C, H = 2, 5, 7, 12, 3
CONFIG = TranslatorConfig(width=C, num_heads=H, hidden_width=19, dropout_rate=0.0).layer(1e-5)


def copy_attention(ours: Any, theirs: Any) -> None:
    for name, part in (("weight", theirs.in_proj_weight), ("bias", theirs.in_proj_bias)):
        if hasattr(ours, "qkv"):
            getattr(ours.qkv, name).copy_(part)
        else:
            for projection, third in zip((ours.query, ours.key, ours.value), part.chunk(3), strict=True):
                getattr(projection, name).copy_(third)
    ours.output.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def copy_layer(ours: Any, theirs: Any) -> None:
    """Copy their parameters, randomized first, to ours."""
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    copy_attention(ours.self_attention, theirs.self_attn)
    norms = [ours.self_residual, ours.feedforward_residual]
    if isinstance(ours, DecoderLayer):
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        norms.insert(1, ours.cross_residual)
    for index, residual in enumerate(norms, 1):
        residual.norm.load_state_dict(getattr(theirs, f"norm{index}").state_dict())
    ours.feedforward.fc1.load_state_dict(theirs.linear1.state_dict())
    ours.feedforward.fc2.load_state_dict(theirs.linear2.state_dict())


def assert_equal_with_gradients(
    ours: Callable[..., Any], theirs: Callable[..., Any], inputs: list[Tensor], parameters: list[tuple[Tensor, Tensor]]
) -> None:
    results = []
    for call in (ours, theirs):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        out = call(*leaves)
        out.square().sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves)])
    results[0] += [ours_p.grad for ours_p, _ in parameters]
    results[1] += [theirs_p.grad for _, theirs_p in parameters]
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer_equal_to_torch(norm: NormPlacement, activation: Activation) -> None:
    ours = EncoderLayer(replace(CONFIG, norm=norm, activation=activation), 0).double()
    theirs = nn.TransformerEncoderLayer(
        C, H, 19, dropout=0.0, activation=activation, batch_first=True, norm_first=norm == "pre"
    ).double()
    copy_layer(ours, theirs)
    mask = masks.padding(torch.tensor([3, 5]), N)
    assert_equal_with_gradients(
        lambda x: ours(x, mask)[:, :3],
        lambda x: theirs(x, src_key_padding_mask=~mask[:, 0, 0])[:, :3],
        [torch.randn(B, N, C).double()],
        [
            (ours.self_attention.qkv.weight, theirs.self_attn.in_proj_weight),
            (ours.feedforward.fc1.weight, theirs.linear1.weight),
        ],
    )


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_layer_equal_to_torch(norm: NormPlacement) -> None:
    ours = DecoderLayer(replace(CONFIG, norm=norm), 0).double()
    theirs = nn.TransformerDecoderLayer(C, H, 19, dropout=0.0, batch_first=True, norm_first=norm == "pre").double()
    copy_layer(ours, theirs)
    memory_mask, causal = masks.padding(torch.tensor([3, 5]), N), masks.causal(M)
    assert_equal_with_gradients(
        lambda x, memory: ours(x, ours.project_memory(memory), memory_mask, mask=causal),
        lambda x, memory: theirs(x, memory, tgt_mask=~causal, memory_key_padding_mask=~memory_mask[:, 0, 0]),
        [torch.randn(B, M, C).double(), torch.randn(B, N, C).double()],
        [(ours.cross_attention.output.weight, theirs.multihead_attn.out_proj.weight)],
    )


@pytest.mark.parametrize(("kind", "streams"), [(EncoderLayer, ENCODER_STREAMS), (DecoderLayer, DECODER_STREAMS)])
def test_streams_are_unique_and_within_the_layers_range(kind: type, streams: int) -> None:
    layer = kind(replace(CONFIG, dropout_rate=0.1), 100)
    taken = [module.stream for module in layer.modules() if hasattr(module, "stream")]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(range(100, 100 + streams))


def test_dropout_and_attention_dropout_act_in_training_by_the_samples_own_numbers() -> None:
    tokens, rng = torch.randn(B, N, C), SampleRandom.at(0, 0, torch.arange(B))
    single: list[dict[str, Any]] = [{"dropout_rate": 0.5}, {"attention_dropout_rate": 0.5}]
    for rates in single:
        layer = EncoderLayer(replace(CONFIG, **rates), 0)
        dropped = layer(tokens, None, rng=rng)
        torch.testing.assert_close(dropped, layer(tokens, None, rng=rng))
        later = layer(tokens[1:], None, rng=SampleRandom.at(0, 0, torch.arange(1, B)))
        torch.testing.assert_close(dropped[1:], later, atol=1e-5, rtol=1e-4)
        assert not torch.allclose(dropped, layer.eval()(tokens, None, rng=rng))
