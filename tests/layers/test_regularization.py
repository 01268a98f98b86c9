"""Random layers: rates, scaling, and draws that depend on the sample alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vit.layers.regularization import Dropout, LayerScale, PatchDropout, StochasticDepth
from vit.randomness import SampleRandom

B, N, C = 6, 40, 50


def rng(count: int = B, seed: int = 0) -> SampleRandom:
    return SampleRandom.at(seed, 1, torch.arange(count))


def first(result: Tensor | tuple[Tensor, None] | tuple[Tensor, Tensor]) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("make", [Dropout, StochasticDepth, PatchDropout])
def test_draws_depend_on_the_sample_alone(make: type) -> None:
    x, layer, random = torch.randn(B, N, C), make(0.5, 3), rng()
    whole = first(layer(x, random))
    halves = [first(layer(x[part], SampleRandom(random.state[part]))) for part in (slice(0, 3), slice(3, 6))]
    assert torch.equal(whole, torch.cat(halves))
    assert not torch.equal(whole, first(layer(x, rng(seed=1))))
    assert not torch.equal(whole, first(make(0.5, 4)(x, random)))
    torch.manual_seed(0)
    free = first(layer(x))
    assert not torch.equal(free, first(layer(x)))
    torch.manual_seed(0)
    assert torch.equal(free, first(layer(x)))


@pytest.mark.parametrize("make", [Dropout, StochasticDepth, PatchDropout])
def test_nothing_in_evaluation_or_at_rate_zero(make: type) -> None:
    x = torch.randn(B, N, C)
    assert first(make(0.5, 0).eval()(x, rng())) is x
    assert first(make(0.0, 0)(x, rng())) is x


@pytest.mark.parametrize("random", [None, rng(2000)])
@pytest.mark.parametrize("make", [Dropout, StochasticDepth])
def test_rate_and_scale(make: type, random: SampleRandom | None) -> None:
    torch.manual_seed(0)
    out = make(0.25, 0)(torch.ones(2000, 4, 2), random)
    torch.testing.assert_close(out.unique(), torch.tensor([0.0, 1 / 0.75]))
    assert abs((out == 0).float().mean().item() - 0.25) < 0.04


def test_stochastic_depth_takes_whole_samples() -> None:
    out = StochasticDepth(0.5, 0)(torch.ones(200, 4, 2), rng(200))
    assert ((out == 0).all((1, 2)) | (out == 2).all((1, 2))).all()


def test_patch_dropout_returns_the_kept_indices() -> None:
    x = torch.arange(B * N).reshape(B, N, 1).expand(-1, -1, C).float()
    left, kept = PatchDropout(0.7, 0)(x, rng())
    assert left.shape == (B, 12, C)
    assert torch.equal(left, torch.stack([sample[places] for sample, places in zip(x, kept, strict=True)]))
    assert (kept.diff(dim=1) > 0).all()
    assert len({tuple(row) for row in kept.tolist()}) == B
    assert PatchDropout(0.99, 0)(x[:, :3], rng())[0].shape[1] == 1


def test_layer_scale() -> None:
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(LayerScale(4, 0.5)(x), x / 2)
