"""The rows of the systems page, by number, and their tests. Tests in other files are not repeated here.

1. Average pooling: `test_row_01_average_pooling`, `test_constant_is_the_mean_of_the_values`.
2. Nadaraya–Watson regression: `test_row_02_kernel_regression_without_parameters`, `test_gaussian_kernel_by_hand`.
3. The same with learned widths: `test_losses_are_squared_errors_of_estimates_from_the_other_points`,
   `test_a_step_is_gradient_descent_on_the_mean_by_hand`,
   `test_training_narrows_kernels_and_lowers_the_error_and_the_gap_opens`, `test_the_pictures_have_their_numbers`.
4. Batched products: `test_row_04_batched_products_equal_the_loop`,
   `test_batched_products_equal_the_loop_over_queries`.
5. Masked softmax: `test_row_05_masked_softmax_with_valid_lengths`.
6. Additive and cosine scores: `test_row_06_additive_and_cosine_by_hand`,
   `test_additive_is_bahdanaus_formula_key_by_key`.
7. Scaled dot products: `test_scores_of_112_and_96_at_width_64`,
   `test_dot_products_have_variance_d_and_scaled_ones_1`,
   `test_the_gradient_vanishes_without_the_scale_and_holds_with_it`,
   `test_additive_beats_unscaled_products_as_d_grows`.
8. Self-attention worked by hand: `test_row_08_self_attention_worked_by_hand`.
9. Causal self-attention: `test_row_09_causal_self_attention`.
10. Multi-head attention: `test_row_10_multi_head_equals_torchs_with_widths_of_their_own`, `test_different_widths`,
    `test_additive_heads_of_unequal_widths_against_a_loop_over_heads`.
11. Cross-attention and a cache: `test_row_11_cross_attention_and_a_cache_equal_one_pass`,
    `test_incremental_equals_one_pass`, `test_stepping_equals_reading_the_whole_target`.
12. Recurrent translators: `test_plain_decoder_by_hand`, `test_bahdanau_by_hand`.
13. Transformer: `test_equal_to_torch_forward_and_gradient`, `test_sinusoids_by_hand`,
    `test_batch_norm_moves_with_the_lengths_in_the_batch_and_layer_norm_does_not`.
14. BERT's layout: `test_hidden_states_of_all_layers_equal_transformers`.
15. Cost by layer type: `test_every_layer_sees_what_its_kind_sees`, `test_measured_exponents_are_those_of_the_table`.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vit.attention import masks
from vit.attention.cache import KeyValueCache
from vit.attention.core import attend, attention_weights
from vit.attention.multihead import MultiHeadAttention, SelfAttention, Widths
from vit.attention.scores import Additive, Constant, Cosine, GaussianKernel

TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)
SIX_WORDS = ["Life", "is", "short", "eat", "dessert", "first"]


def rounded(tensor: Tensor, decimals: int = 4) -> list[float]:
    return [round(number, decimals) for number in tensor.flatten().tolist()]


def test_row_01_average_pooling() -> None:
    """The result is (1 + 2 + 6) / 3 for every query."""
    query, key = torch.tensor([-7.0, 0.0, 5.0]).reshape(1, 1, 3, 1), torch.tensor([1.0, 4.0, 9.0]).reshape(1, 1, 3, 1)
    value = torch.tensor([1.0, 2.0, 6.0]).reshape(1, 1, 3, 1)
    assert rounded(attend(query, key, value, score=Constant())) == [3.0, 3.0, 3.0]


def test_row_02_kernel_regression_without_parameters() -> None:
    """A query halfway between two keys gets the mean; at a key, that key weighs e^½ to 1."""
    query, key = torch.tensor([0.5, 0.0]).reshape(1, 1, 2, 1), torch.tensor([0.0, 1.0]).reshape(1, 1, 2, 1)
    value = torch.tensor([3.0, 5.0]).reshape(1, 1, 2, 1)
    halfway, upon = attend(query, key, value, score=GaussianKernel()).flatten().tolist()
    assert halfway == pytest.approx(4.0)
    assert upon == pytest.approx((3 * math.exp(0.5) + 5) / (math.exp(0.5) + 1))


def test_row_04_batched_products_equal_the_loop() -> None:
    query, key, value = torch.randn(2, 5, 3).double(), torch.randn(2, 7, 3).double(), torch.randn(2, 7, 11).double()
    weights = attention_weights(query[:, None], key[:, None])[:, 0]
    loop = torch.zeros(2, 5, 11).double()
    for b in range(2):
        for n in range(5):
            for m in range(7):
                loop[b, n] += weights[b, n, m] * value[b, m]
    torch.testing.assert_close(torch.bmm(weights, value), loop)
    torch.testing.assert_close(attend(query[:, None], key[:, None], value[:, None])[:, 0], loop)


@pytest.mark.parametrize("lengths", [[2, 3], [[2, 2], [3, 3]]], ids=["per sample", "per query"])
def test_row_05_masked_softmax_with_valid_lengths(lengths: list[Any]) -> None:
    scores = torch.tensor(
        [
            [[0.4140, -1.1542, -1.2127, 0.6286], [-0.6033, 0.5189, -1.4756, -0.0650]],
            [[-0.1864, 0.5557, 0.1935, -1.2823], [0.1995, -1.6036, 1.3123, -0.0660]],
        ]
    )
    nothing, mask = torch.zeros(2, 1, 4, 1), masks.padding(torch.tensor(lengths), 4)
    weights = attention_weights(nothing[:, :, :2], nothing, bias=scores[:, None], mask=mask)
    assert rounded(weights[0]) == [0.8275, 0.1725, 0, 0, 0.2456, 0.7544, 0, 0]
    assert rounded(weights[1]) == [0.2192, 0.4604, 0.3205, 0, 0.2377, 0.0392, 0.7232, 0]
    ragged = masks.padding(torch.tensor([[1, 3], [2, 4]]), 4)
    weights = attention_weights(nothing[:, :, :2], nothing, bias=scores[:, None], mask=ragged)
    assert (weights[:, 0] > 0).sum(dim=-1).tolist() == [[1, 3], [2, 4]]


def test_row_06_additive_and_cosine_by_hand() -> None:
    """Queries of width 1 and keys of width 2: 3 tanh(2 · 0.1 + 0.3 - 0.5) = 0 and 3 tanh(2 · 0.1 + 0.3) = 1.3864."""
    score = Additive(query_width=1, key_width=2, hidden_width=1)
    with torch.no_grad():
        score.query.weight.fill_(2.0)
        score.key.weight.copy_(torch.tensor([[1.0, -1.0]]))
        score.weight.fill_(3.0)
    assert score.query.bias is None
    assert score.key.bias is None
    query, key = torch.tensor([[[[0.1]]]]), torch.tensor([[[[0.3, 0.5], [0.3, 0.0]]]])
    assert rounded(score(query, key)) == [0.0, 1.3864]
    assert rounded(attention_weights(query, key, score=score)) == [0.2, 0.8]
    lengths = torch.tensor([[[[2.0, 0.0]]]]), torch.tensor([[[[5.0, 5.0], [-0.1, 0.0]]]])
    assert rounded(Cosine()(*lengths, None)) == [0.7071, -1.0]


def test_row_08_self_attention_worked_by_hand() -> None:
    places = {word: place for place, word in enumerate(sorted(SIX_WORDS))}
    assert places == {"Life": 0, "dessert": 1, "eat": 2, "first": 3, "is": 4, "short": 5}
    torch.manual_seed(123)
    embedding = nn.Embedding(6, 16)
    assert rounded(embedding.weight[0, :4]) == [0.3374, -0.1778, -0.3035, -0.5880]
    tokens = embedding(torch.tensor([places[word] for word in SIX_WORDS])).detach()
    torch.manual_seed(123)
    query, key, value = ((tokens @ torch.rand(width, 16).T)[None, None] for width in (24, 24, 28))
    weights = attention_weights(query[:, :, 1:2], key)
    assert rounded(weights) == [0.2912, 0.0106, 0.0982, 0.0625, 0.4917, 0.0458]
    context = attend(query, key, value)[0, 0, 1]
    assert context.shape == (28,)
    torch.testing.assert_close(context, sum(w * v for w, v in zip(weights[0, 0, 0], value[0, 0], strict=True)))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(attention_weights(query[:, :, 1:2], key, scale=1.0), weights)


def test_row_09_causal_self_attention() -> None:
    words = ["I", "have", "a", "dream"]
    tokens = torch.randn(1, 1, len(words), 5, generator=torch.Generator().manual_seed(0))
    weights = attention_weights(tokens, tokens, mask=masks.causal(4))[0, 0]
    assert torch.equal(weights, weights.tril())
    assert (weights.tril() + torch.ones(4, 4).triu(1) > 0).all()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(4))
    before = attend(tokens, tokens, tokens, mask=masks.causal(4))
    changed = tokens.clone()
    changed[:, :, words.index("dream")] = 9.0
    after = attend(changed, changed, changed, mask=masks.causal(4))
    assert torch.equal(after[:, :, :3], before[:, :, :3])
    assert not torch.allclose(after[:, :, 3], before[:, :, 3])


def test_row_10_multi_head_equals_torchs_with_widths_of_their_own() -> None:
    """Forward, and the gradient of every parameter and input, in float64."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, kdim=7, vdim=5, batch_first=True).double()
    ours = MultiHeadAttention(12, 3, widths=Widths(key=7, value=5)).double()
    biases = nn.init.normal_(theirs.in_proj_bias).chunk(3)
    for name, letter, bias in zip(("query", "key", "value"), "qkv", biases, strict=True):
        weight = getattr(theirs, f"{letter}_proj_weight")
        getattr(ours, name).load_state_dict({"weight": weight, "bias": bias})
    ours.output.load_state_dict(theirs.out_proj.state_dict())
    inputs = [torch.randn(2, *shape).double().requires_grad_() for shape in ((5, 12), (11, 7), (11, 5))]
    expected, actual = theirs(*inputs)[0], ours(*inputs)
    torch.testing.assert_close(actual, expected)
    linears = (ours.query, ours.key, ours.value, ours.output)
    ours_all = [*inputs, *(linear.weight for linear in linears), ours.output.bias]
    theirs_all = [*inputs, theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight]
    theirs_all += [theirs.out_proj.weight, theirs.out_proj.bias]
    wanted = torch.autograd.grad(expected.square().sum(), [*theirs_all, theirs.in_proj_bias])
    found = torch.autograd.grad(actual.square().sum(), [*ours_all, *(linear.bias for linear in linears[:3])])
    for gradient, reference in zip(found, [*wanted[:-1], *wanted[-1].chunk(3)], strict=True):
        torch.testing.assert_close(gradient, reference)


@torch.no_grad()
def test_row_11_cross_attention_and_a_cache_equal_one_pass() -> None:
    """A decoder with both attentions, word by word: the source's keys and values are computed once, its own cached."""
    torch.manual_seed(0)
    own, cross = SelfAttention(12, 3).double(), MultiHeadAttention(12, 3, widths=Widths(key=7, value=7)).double()
    target, source = torch.randn(2, 5, 12).double(), torch.randn(2, 11, 7).double()
    padding = masks.padding(torch.tensor([11, 4]), 11)
    read = own(target, mask=masks.causal(5))
    whole = cross(read, source, source, mask=padding)
    cache, memory = KeyValueCache(), cross.keys_and_values(source, source)
    for place in range(5):
        word = own(target[:, place : place + 1], cache=cache)
        answer = cross.attend_to(word, memory, mask=padding)
        torch.testing.assert_close(answer, whole[:, place : place + 1])
    assert cache.length == 5
    source[1, 4:] = 9.0
    torch.testing.assert_close(cross(read, source, source, mask=padding), whole)


def test_the_list_above_names_tests_that_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", __doc__))
    found = {name for file in Path(__file__).parents[1].rglob("test_*.py") for name in TEST.findall(file.read_text())}
    assert len(named) > 20
    assert named <= found
