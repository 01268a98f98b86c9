"""Random erasing (Zhong et al. 2020): one rectangle of an image replaced by noise, timm's `pixel` mode."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from vit.data.augment.crops import draw_boxes
from vit.randomness import SampleRandom

_AREA = (0.02, 1 / 3)
_RATIO = (0.3, 1 / 0.3)


def erase(images: Tensor, positions: Tensor, probability: float, *, seed: int, epoch: int) -> Tensor:
    """Normalised float32 (b, 3, h, w) → same, changed in place: standard normal noise for every pixel and channel."""
    rng = SampleRandom.at(seed, epoch, positions)
    chosen = (rng.fork("erase").uniform() < probability).nonzero().squeeze(1)
    height, width = images.shape[-2:]
    rectangles = _rectangles(SampleRandom(rng.state[chosen]), (height, width))
    member, place = rectangles.flatten(1).nonzero(as_tuple=True)
    sample = chosen[member]
    # A hash of each erased pixel, so that only those are drawn.
    words = SampleRandom(rng.fork("erase noise").state[sample]).words_at(place)[:, : images.shape[1]]
    images.flatten(2).movedim(1, -1)[sample, place] = _quantiles(images.device)[words]
    return images


@cache
def _quantiles(device: torch.device) -> Tensor:
    """The standard normal's at 65,536 evenly spaced probabilities, none beyond 4.4: for noise they are enough."""
    probabilities = (torch.arange(65536, dtype=torch.float64) + 0.5) / 65536
    return torch.special.ndtri(probabilities).to(device, torch.float32)


def _rectangles(rng: SampleRandom, size: tuple[int, int]) -> Tensor:
    """(b, h, w) boolean. Where ten tries gave no rectangle that fits, nothing is erased."""
    shape = torch.full_like(rng.state, 1, dtype=torch.float64) * size[1] / size[0]
    boxes, fits = draw_boxes(rng.fork("erase box"), size, shape, scale=_AREA, ratio=_RATIO)
    row = torch.arange(size[0], device=rng.state.device)
    column = torch.arange(size[1], device=rng.state.device)
    rows = (row >= boxes.top[:, None]) & (row < (boxes.top + boxes.height)[:, None])
    columns = (column >= boxes.left[:, None]) & (column < (boxes.left + boxes.width)[:, None])
    return rows[:, :, None] & columns[:, None, :] & fits[:, None, None]
