"""Sensor noise, independent for each value. Pixels are float32 (b, 3, h, w) in [0, 1]."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import poisson
from torch import Tensor

from vit.randomness import SampleRandom


def gaussian_noise(pixels: Tensor, rng: SampleRandom, deviation: float) -> Tensor:
    return pixels + deviation * rng.normal(*pixels.shape[1:])


def shot_noise(pixels: Tensor, rng: SampleRandom, photons: float) -> Tensor:
    """Draw Poisson counts by inverting their distribution: one draw for each value, which has one of 256 rates.

    All distributions lie in one ascending table, that of level v shifted by v, so that one search serves all.
    """
    levels = np.arange(256)
    most = int(poisson.ppf(1 - 2.0**-26, photons)) + 1
    cumulative = poisson.cdf(np.arange(most), levels[:, None] / 255 * photons)  # 256 most
    table = torch.from_numpy((levels[:, None] + cumulative).ravel()).to(pixels.device)
    level = (pixels * 255).round()
    draws = rng.uniform(*pixels.shape[1:]).to(torch.float64) + 2.0**-25
    counts = torch.searchsorted(table, (level + draws).contiguous()) - level.to(torch.int64) * most
    return (counts / photons).to(torch.float32)


def impulse_noise(pixels: Tensor, rng: SampleRandom, amount: float) -> Tensor:
    """Set a fraction `amount` of the values to 0 or 1, equally often."""
    draws = rng.uniform(*pixels.shape[1:])
    return pixels.masked_fill(draws < amount, 1.0).masked_fill(draws < amount / 2, 0.0)
