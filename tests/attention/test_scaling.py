"""Row 7: the variance of scores is d without the scale and 1 with it, and softmax's gradient vanishes without it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.attention.scaling import score_spread, softmax_gradient
from vit.attention.scores import Cosine, ScaledDotProduct, TanhSum

WIDTHS = (4, 61, 251)


@pytest.mark.parametrize("width", WIDTHS)
def test_dot_products_have_variance_d_and_scaled_ones_1(width: int) -> None:
    unscaled, scaled = score_spread(width, scale=1.0), score_spread(width)
    assert unscaled.variance == pytest.approx(width, rel=0.03)
    assert scaled.variance == pytest.approx(1, rel=0.03)
    assert unscaled.variance == pytest.approx(scaled.variance * width, rel=1e-4)


def test_the_gradient_vanishes_without_the_scale_and_holds_with_it() -> None:
    """The widest gap of 32 scores grows like √d; the gradient falls exponentially with the gap."""
    unscaled = [score_spread(width, scale=1.0).gradient for width in (64, 256, 1024)]
    scaled = [score_spread(width).gradient for width in (64, 256, 1024)]
    assert unscaled[1] < unscaled[0] / 5
    assert unscaled[2] < unscaled[1] / 25
    assert scaled[2] == pytest.approx(scaled[0], rel=0.03)
    assert scaled[2] > 1000 * unscaled[2]


def test_other_scores_do_not_grow() -> None:
    """Cosines have variance 1/d; a sum of d tanh with weights of variance 1/d stays below 1."""
    assert score_spread(61, score=Cosine()).variance == pytest.approx(1 / 61, rel=0.05)
    for width in WIDTHS:
        assert score_spread(width, score=TanhSum(torch.full((width,), width**-0.5))).variance < 1


def test_the_draw_is_fixed_and_every_argument_has_an_effect() -> None:
    torch.manual_seed(0)
    first = score_spread(5)
    torch.manual_seed(1)
    assert score_spread(5) == first
    others = [
        score_spread(6),
        score_spread(5, scale=1.0),
        score_spread(5, score=Cosine()),
        score_spread(5, num_queries=3),
        score_spread(5, num_keys=7),
    ]
    assert all(other != first for other in others)
    assert score_spread(5, score=ScaledDotProduct()) == first


def test_gradients_by_hand() -> None:
    """Two keys: diag(p) - p pᵀ is p₁p₂ times [[1, -1], [-1, 1]], of norm 2 p₁p₂."""
    weights = torch.tensor([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]])
    torch.testing.assert_close(softmax_gradient(weights), torch.tensor([0.5, 0.18, 0.0]))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-8, 8), min_size=1, max_size=7))
def test_gradients_are_the_norm_of_autograds_jacobian(scores: list[float]) -> None:
    row = torch.tensor(scores, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(dim=0), row)
    torch.testing.assert_close(softmax_gradient(row.softmax(dim=0)), jacobian.norm())
    assert softmax_gradient(row.softmax(dim=0)) <= 0.5 + 1e-12
