"""Nadaraya–Watson regression against sums by hand, the loop over queries, and its limits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.attention.kernel_regression import NadarayaWatson, leave_one_out


def draw(n: int = 5, m: int = 7, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Queries (n,), keys, values and widths (m,), in float64."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys, values, widths = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in (n, m, m, m)
    )
    return 2 * queries, 2 * keys, values, 0.5 + widths.abs()


def test_two_keys_by_hand() -> None:
    """At 0 the kernels of width 1 at 0 and at 1 weigh 1 and e^-½; with w = (3, 2), 1 and e^-2; at 2, e^-18 and e^-2."""
    keys, values = torch.tensor([0.0, 1.0]).double(), torch.tensor([3.0, 5.0]).double()
    near = math.exp(-0.5)
    fixed = NadarayaWatson(keys, values)
    assert fixed(torch.zeros(1).double()).item() == pytest.approx((3 + 5 * near) / (1 + near))
    assert fixed.weights(torch.zeros(1).double())[0].tolist() == pytest.approx([1 / (1 + near), near / (1 + near)])
    estimates = NadarayaWatson(keys, values, torch.tensor([3.0, 2.0]))(torch.tensor([0.0, 2.0]).double())
    assert estimates.tolist() == pytest.approx(
        [
            (3 + 5 * math.exp(-2)) / (1 + math.exp(-2)),
            (3 * math.exp(-18) + 5 * math.exp(-2)) / (math.exp(-18) + math.exp(-2)),
        ]
    )


def test_batched_products_equal_the_loop_over_queries() -> None:
    """Row 4: estimates and gradients, one query at a time and all at once, as `torch.bmm` of the map has them too."""
    queries, keys, values, widths = draw(5, 7)
    model = NadarayaWatson(keys, values, widths, learned=True)
    looped_widths = widths.clone().requires_grad_()
    loop = []
    for query in queries:
        scores = torch.stack([-0.5 * ((query - k) * w) ** 2 for k, w in zip(keys, looped_widths, strict=True)])
        exponents = torch.exp(scores)
        loop.append((exponents * values).sum() / exponents.sum())
    estimates = model(queries)
    torch.testing.assert_close(estimates, torch.stack(loop))
    weights = model.weights(queries)
    torch.testing.assert_close(torch.bmm(weights[None], values[None, :, None])[0, :, 0], estimates)
    (estimates**2).sum().backward()
    (torch.stack(loop) ** 2).sum().backward()
    torch.testing.assert_close(model.widths.grad, looped_widths.grad)
    assert model.widths.grad is not None
    assert (model.widths.grad != 0).all()


def test_the_widths_gradient_is_that_of_differences() -> None:
    queries, keys, values, widths = draw(3, 5)
    mask = torch.rand(3, 5, generator=torch.Generator().manual_seed(1)) < 0.7

    def estimate(widths: torch.Tensor) -> torch.Tensor:
        model = NadarayaWatson(keys, values, 1.0, learned=True)
        del model.widths
        model.widths = widths
        return model(queries, mask)

    assert torch.autograd.gradcheck(estimate, (widths.requires_grad_(),))


def test_a_wide_kernel_averages_and_a_narrow_one_finds_the_nearest_key() -> None:
    queries, keys, values, _ = draw(11, 7)
    torch.testing.assert_close(NadarayaWatson(keys, values, 1e-9)(queries), values.mean().expand(11))
    nearest = (queries[:, None] - keys).abs().argmin(dim=1)
    torch.testing.assert_close(NadarayaWatson(keys, values, 1e4)(queries), values[nearest])


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 9), m=st.integers(1, 9), seed=st.integers(0, 2**16))
def test_estimates_are_averages_whatever_the_order_of_the_keys(n: int, m: int, seed: int) -> None:
    queries, keys, values, widths = draw(n, m, seed)
    estimates = NadarayaWatson(keys, values, widths)(queries)
    assert (estimates >= values.min() - 1e-9).all()
    assert (estimates <= values.max() + 1e-9).all()
    other = torch.randperm(m, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(NadarayaWatson(keys[other], values[other], widths[other])(queries), estimates)
    shifted = NadarayaWatson(keys + 3, values, widths)(queries + 3)
    torch.testing.assert_close(shifted, estimates, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(NadarayaWatson(keys, values, widths).weights(queries).sum(dim=1), torch.ones(n).double())


def test_leave_one_out_is_the_estimate_without_that_point() -> None:
    _, keys, values, widths = draw(m=7)
    model = NadarayaWatson(keys, values, widths)
    rows = torch.tensor([5, 0, 2])
    estimates = model(keys[rows], leave_one_out(rows, 7))
    for row, estimate in zip(rows.tolist(), estimates, strict=True):
        others = [index for index in range(7) if index != row]
        alone = NadarayaWatson(keys[others], values[others], widths[others])
        torch.testing.assert_close(alone(keys[row : row + 1])[0], estimate)
    assert leave_one_out(torch.tensor([2, 0]), 3).tolist() == [[True, True, False], [False, True, True]]


def test_only_learned_widths_are_parameters() -> None:
    _, keys, values, widths = draw()
    fixed, learned = NadarayaWatson(keys, values, widths), NadarayaWatson(keys, values, 2.0, learned=True)
    assert not list(fixed.parameters())
    assert [(name, value.tolist()) for name, value in learned.named_parameters()] == [("widths", [2.0] * 7)]
    assert learned.state_dict().keys() == {"keys", "values", "widths"} == fixed.state_dict().keys()


def test_mismatched_shapes_are_a_defect() -> None:
    _, keys, values, widths = draw()
    with pytest.raises(AssertionError, match="7 keys and 6 values"):
        NadarayaWatson(keys, values[:6])
    with pytest.raises(AssertionError, match=r"not \(m,\)"):
        NadarayaWatson(keys[:, None], values)
    with pytest.raises(AssertionError, match=r"\(3,\) widths for 7 keys"):
        NadarayaWatson(keys, values, widths[:3])
