"""Interleaved speeds with a fake clock."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from vit.evaluation.speed import TimedModel, interleaved_speeds


class Clock(nn.Module):
    """A model that takes so many seconds of a made-up clock."""

    now = 0.0
    order: list[str] = []  # noqa: RUF012

    def __init__(self, name: str, seconds: list[float]) -> None:
        super().__init__()
        self.name, self.seconds = name, seconds

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        Clock.order.append(f"{self.name}{len(images)}x{images.shape[2]}")
        Clock.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return images


def test_turns_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: Clock.now)
    monkeypatch.setattr(Clock, "order", [])
    models = {
        "a": TimedModel(Clock("a", [9, 2, 1, 2, 4]).train(), (4, 4)),  # first call 9 s, which counts for nothing
        "b": TimedModel(Clock("b", [9, 0.5, 0.5]), (8, 8)),  # two calls a turn
    }
    found = interleaved_speeds(models, batch_size=6, device=torch.device("cpu"), turns=3, seconds=1.0)
    assert found["a"].turns == (6, 3, 1.5)
    assert (found["a"].median, found["a"].slowest, found["a"].fastest) == (3, 1.5, 6)
    assert found["b"].turns == (12, 12, 12)
    a, b = "a6x4", "b6x8"
    assert Clock.order == [a, a, b, b, *[a, b, b], *[b, b, a], *[a, b, b]]
    assert models["a"].model.training


def test_real_models_have_a_speed() -> None:
    models = {"small": TimedModel(nn.Conv2d(3, 4, 3), (16, 16)), "large": TimedModel(nn.Conv2d(3, 64, 9), (64, 64))}
    found = interleaved_speeds(models, batch_size=4, device=torch.device("cpu"), turns=2, seconds=0.01)
    assert found["small"].median > found["large"].median > 0
    assert found["large"].slowest <= found["large"].median <= found["large"].fastest
    assert found["small"].slowest == pytest.approx(min(found["small"].turns))
