"""Scores against their formulas written out, number by number."""

import math

import pytest
import torch
from torch import Tensor

from vit.attention.core import attend, attention_weights
from vit.attention.scores import Additive, Constant, Cosine, GaussianKernel, Score, TanhSum


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_constant_is_the_mean_of_the_values() -> None:
    query, key, value = draw(2, 3, 5, 7), draw(2, 3, 11, 7, seed=1), draw(2, 3, 11, 13, seed=2)
    averaged = attend(query, key, value, score=Constant())
    assert torch.allclose(averaged, value.mean(dim=2, keepdim=True).expand_as(averaged))


def test_cosine_of_the_3_4_5_triangle() -> None:
    query, key = torch.tensor([[[[3.0, 4.0]]]]), torch.tensor([[[[1.0, 0.0], [6.0, 8.0], [-4.0, 3.0]]]])
    assert torch.allclose(Cosine()(query, key, None), torch.tensor([[[[0.6, 1.0, 0.0]]]]), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_cosine_of_no_direction_is_zero(dtype: torch.dtype) -> None:
    query, key = torch.tensor([[[[3.0, 4.0]]]], dtype=dtype), torch.tensor([[[[0.0, 0.0], [3.0, 4.0]]]], dtype=dtype)
    scores = Cosine()(query, key, None)
    torch.testing.assert_close(scores, torch.tensor([[[[0.0, 1.0]]]], dtype=dtype), atol=1e-2, rtol=0)


@pytest.mark.parametrize("width", [1.0, 2.5])
def test_gaussian_kernel_by_hand(width: float) -> None:
    """softmax(-½((q-k)w)²) over the keys 0, 1, 3 for the query 1."""
    query, key = torch.tensor([[[[1.0]]]]), torch.tensor([[[[0.0], [1.0], [3.0]]]])
    rises = [math.exp(-0.5 * (gap * width) ** 2) for gap in (1, 0, 2)]
    expected = torch.tensor([rise / sum(rises) for rise in rises])
    weights = attention_weights(query, key, score=GaussianKernel(width))[0, 0, 0]
    assert torch.allclose(weights, expected)


def test_gaussian_kernel_has_a_learnable_width_per_key() -> None:
    query, key = draw(1, 1, 5, 1), draw(1, 1, 7, 1, seed=1)
    width = draw(7, seed=2).requires_grad_()
    scores = GaussianKernel(width)(query, key, None)
    for n in range(5):
        for m in range(7):
            gap = query[0, 0, n, 0] - key[0, 0, m, 0]
            assert torch.isclose(scores[0, 0, n, m], -0.5 * (gap * width[m]) ** 2)
    assert torch.autograd.gradcheck(lambda w: GaussianKernel(w)(query, key, None), width)


def test_gaussian_kernel_of_vectors_uses_their_distance() -> None:
    query, key = draw(2, 3, 5, 7), draw(2, 3, 11, 7, seed=1)
    expected = -0.5 * torch.cdist(query, key) ** 2
    assert torch.allclose(GaussianKernel()(query, key, None), expected)


def test_additive_is_bahdanaus_formula_key_by_key() -> None:
    score = Additive(7, 11, 13).double()
    query, key = draw(2, 3, 5, 7), draw(2, 3, 17, 11, seed=1)
    found = score(query, key)
    for b, h, n, m in ((0, 0, 0, 0), (1, 2, 4, 16), (0, 1, 3, 8)):
        hidden = torch.tanh(score.query.weight @ query[b, h, n] + score.key.weight @ key[b, h, m])
        assert torch.isclose(found[b, h, n, m], score.weight @ hidden)


def test_additive_attends_over_keys_of_another_width() -> None:
    score = Additive(7, 11, 13).double()
    query, key, value = draw(2, 6, 5, 7), draw(2, 3, 17, 11, seed=1), draw(2, 3, 17, 19, seed=2)
    attended = attend(query, key, value, score=score)
    assert attended.shape == (2, 6, 5, 19)
    attended.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in score.parameters())


def test_keys_that_are_projected_once_score_the_same() -> None:
    score = Additive(7, 11, 13).double()
    query, key = draw(2, 3, 5, 7), draw(2, 3, 17, 11, seed=1)
    assert torch.equal(score.projected(score.query(query), score.key(key), None), score(query, key))


def test_unequal_widths_need_the_additive_score() -> None:
    with pytest.raises(ValueError, match="e = d unless the score is Additive"):
        attend(draw(1, 1, 2, 3), draw(1, 1, 2, 5), draw(1, 1, 2, 5))


@pytest.mark.parametrize("score", [Constant(), GaussianKernel(), TanhSum(torch.ones(3)), Additive(3, 3, 3)])
def test_a_scale_that_would_have_no_effect_is_refused(score: Score) -> None:
    with pytest.raises(ValueError, match=f"scale: 0.5 is not valid: the score {type(score).__name__} takes none"):
        score(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2, 3), 0.5)


def test_the_systems_page_example_of_scores_112_and_96() -> None:
    """d = 64: 112 and 96 become 14 and 12, and the weights 0.88 and 0.12 (SYSTEMS row 7)."""
    query = torch.zeros(1, 1, 1, 64)
    query[..., 0] = 1.0
    key = torch.zeros(1, 1, 2, 64)
    key[0, 0, :, 0] = torch.tensor([112.0, 96.0])
    weights = attention_weights(query, key)[0, 0, 0]
    assert [round(weight, 2) for weight in weights.tolist()] == [0.88, 0.12]
