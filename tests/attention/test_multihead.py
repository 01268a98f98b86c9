"""Attention with projections against torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vit.attention import masks
from vit.attention.multihead import MultiHeadAttention, SelfAttention, Widths
from vit.attention.scores import Additive, Cosine
from vit.randomness import SampleRandom

B, N, M, C, H = 2, 5, 7, 12, 3


def copy_into(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    with torch.no_grad():
        theirs.in_proj_bias.normal_()
        weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            getattr(ours, name).weight.copy_(weight)
            getattr(ours, name).bias.copy_(bias)
        ours.output.load_state_dict(theirs.out_proj.state_dict())


@pytest.mark.parametrize("backend", ["reference", "matmul", "sdpa"])
def test_equal_to_torch_forward_and_gradient(backend: str) -> None:
    theirs, ours = nn.MultiheadAttention(C, H, batch_first=True), MultiHeadAttention(C, H, backend=backend)
    copy_into(ours, theirs)
    queries, keys = torch.randn(B, N, C), torch.randn(B, M, C)
    mask = masks.padding(torch.tensor([4, 7]), M)
    results = []
    for call in (
        lambda q, k: ours(q, k, k, mask=mask),
        lambda q, k: theirs(q, k, k, key_padding_mask=~mask[:, 0, 0], need_weights=False)[0],
    ):
        q, k = queries.clone().requires_grad_(), keys.clone().requires_grad_()
        out = call(q, k)
        out.square().sum().backward()
        results.append((out, q.grad, k.grad))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    gradients = [part.weight.grad for part in (ours.query, ours.key, ours.value)]
    actual = torch.cat([gradient for gradient in gradients if gradient is not None])
    torch.testing.assert_close(actual, theirs.in_proj_weight.grad, atol=1e-4, rtol=1e-4)


def test_self_attention_equals_multi_head_attention() -> None:
    fused, general = SelfAttention(C, H), MultiHeadAttention(C, H)
    with torch.no_grad():
        for part, weight, bias in zip(
            (general.query, general.key, general.value),
            fused.qkv.weight.chunk(3),
            fused.qkv.bias.chunk(3),
            strict=True,
        ):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
    general.output.load_state_dict(fused.output.state_dict())
    tokens = torch.randn(B, N, C)
    torch.testing.assert_close(fused(tokens), general(tokens, tokens, tokens))
    torch.testing.assert_close(
        fused(tokens, mask=masks.causal(N)), general(tokens, tokens, tokens, mask=masks.causal(N))
    )


def test_different_widths() -> None:
    widths = Widths(key=11, value=13, query_head=4, value_head=5, output=17)
    attention = MultiHeadAttention(10, 3, widths=widths, score=Cosine(), bias=False)
    out = attention(torch.randn(B, N, 10), torch.randn(B, M, 11), torch.randn(B, M, 13))
    assert out.shape == (B, N, 17)
    assert attention.query.bias is None
    assert (attention.query.weight.shape, attention.key.weight.shape) == ((12, 10), (12, 11))
    assert (attention.value.weight.shape, attention.output.weight.shape) == ((15, 13), (17, 15))
    with pytest.raises(ValueError, match=r"num_heads: 3 is not valid: it must divide query_width \(10\)"):
        MultiHeadAttention(10, 3)
    with pytest.raises(ValueError, match=r"key_head: 6 is not valid: it must be query_head \(4\) unless the score is"):
        MultiHeadAttention(10, 3, widths=Widths(query_head=4, key_head=6))


def test_additive_heads_of_unequal_widths_against_a_loop_over_heads() -> None:
    widths = Widths(query_head=3, key_head=5, value_head=7, output=2)
    attention = MultiHeadAttention(10, 2, widths=widths, score=Additive(3, 5, 11)).double()
    queries, keys = torch.randn(B, N, 10).double(), torch.randn(B, M, 10).double()
    mask = masks.padding(torch.tensor([4, 7]), M)
    heads = []
    for query, key, value in zip(
        attention.query(queries).split(3, dim=-1),
        attention.key(keys).split(5, dim=-1),
        attention.value(keys).split(7, dim=-1),
        strict=True,
    ):
        assert isinstance(attention.score, Additive)
        scores = torch.tanh(attention.score.query(query)[:, :, None] + attention.score.key(key)[:, None])
        scores = (scores @ attention.score.weight).masked_fill(~mask[:, 0], float("-inf"))
        heads.append(scores.softmax(dim=-1) @ value)
    expected = attention.output(torch.cat(heads, dim=-1))
    torch.testing.assert_close(attention(queries, keys, keys, mask=mask), expected)
    weights = attention.weights(queries, keys, mask=mask)
    assert weights.shape == (B, 2, N, M)
    torch.testing.assert_close(weights[:, 1], scores.softmax(dim=-1))


def test_learned_score_trains() -> None:
    attention = MultiHeadAttention(C, H, score=Additive(C // H, C // H, 5))
    attention(torch.randn(B, N, C), torch.randn(B, M, C), torch.randn(B, M, C)).sum().backward()
    assert isinstance(attention.score, Additive)
    assert attention.score.weight.grad is not None
    assert attention.score.weight.grad.abs().sum() > 0


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match="num_heads"):
        SelfAttention(10, 3)


def test_qk_norm_keeps_scores_when_projections_grow() -> None:
    attention = SelfAttention(C, H, qk_norm=True, qkv_bias=False)
    tokens = torch.randn(B, N, C)
    query, key, _ = attention.heads(tokens)
    with torch.no_grad():
        attention.qkv.weight[: 2 * C] *= 10
    torch.testing.assert_close(attention.heads(tokens)[:2], (query, key), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["self", "cross"])
def test_dropout_only_in_training_and_by_stream(kind: str) -> None:
    def build(stream: int) -> MultiHeadAttention | SelfAttention:
        torch.manual_seed(0)
        make = SelfAttention if kind == "self" else MultiHeadAttention
        return make(C, H, dropout_rate=0.5, stream=stream)

    tokens, rng = torch.randn(B, N, C), SampleRandom.at(0, 0, torch.arange(B))
    call = (lambda m: m(tokens, rng=rng)) if kind == "self" else (lambda m: m(tokens, tokens, tokens, rng=rng))
    first, second = build(1), build(2)
    torch.testing.assert_close(call(first), call(first))
    assert not torch.allclose(call(first), call(second))
    torch.testing.assert_close(call(first.eval()), call(second.eval()))
