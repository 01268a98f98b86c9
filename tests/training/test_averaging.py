"""The weight average against the recursion by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vit.training.averaging import WeightAverage


def model_of(value: float) -> nn.BatchNorm1d:
    model = nn.BatchNorm1d(3)
    with torch.no_grad():
        model.weight.fill_(value)
    return model


def test_two_steps_by_hand() -> None:
    model = model_of(1.0)
    average = WeightAverage(model, decay=0.9)
    expected = 1.0
    for step, value in ((1, 2.0), (2, 5.0), (1000, 7.0)):
        with torch.no_grad():
            model.weight.fill_(value)
        average.update(model, step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
        assert average.tensors["weight"].tolist() == pytest.approx([expected] * 3)


def test_counters_are_copied_and_statistics_averaged() -> None:
    model = model_of(1.0)
    average = WeightAverage(model, decay=0.5)
    model(torch.ones(4, 3) * 10)
    average.update(model, 100)
    assert average.tensors["num_batches_tracked"] == 1
    assert average.tensors["running_mean"].tolist() == pytest.approx([0.5] * 3)  # half of momentum 0.1 × 10


def test_the_model_gets_its_own_weights_back_bit_for_bit() -> None:
    model = model_of(0.1)
    average = WeightAverage(model, decay=0.5)
    with torch.no_grad():
        model.weight.fill_(1 / 3)
    before = model.weight.clone()
    parameter = model.weight
    with average.applied_to(model):
        assert model.weight.tolist() == pytest.approx([0.1] * 3)
    assert torch.equal(model.weight, before)
    assert model.weight is parameter
    with pytest.raises(RuntimeError, match="inside"), average.applied_to(model):
        raise RuntimeError("inside")
    assert torch.equal(model.weight, before)


def test_the_average_does_not_follow_the_model_by_itself() -> None:
    model = model_of(1.0)
    average = WeightAverage(model, decay=0.5)
    with torch.no_grad():
        model.weight.fill_(9.0)
    assert average.tensors["weight"].tolist() == [1.0] * 3
    other = WeightAverage(model, decay=0.5)
    other.load(average.tensors)
    average.update(model, 1)
    assert other.tensors["weight"].tolist() == [1.0] * 3
