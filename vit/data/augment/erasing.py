"""Random erasing (Zhong et al. 2020): one rectangle of an image replaced by noise, timm's `pixel` mode."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from vit.data.augment.crops import draw_boxes
from vit.randomness import SampleRandom

_AREA = (0.02, 1 / 3)
_RATIO = (0.3, 1 / 0.3)


def erase_rectangles(images: Tensor, positions: Tensor, probability: float, *, seed: int, epoch: int) -> Tensor:
    """Erase rectangles of normalised images float32 (b, 3, h, w) in place: standard normal noise in every channel."""
    rng = SampleRandom.at(seed, epoch, positions)
    chosen = (rng.fork("erase").uniform() < probability).nonzero().squeeze(1)
    rectangles = _rectangles(SampleRandom(rng.state[chosen]), (images.shape[-2], images.shape[-1]))
    row, pixel = rectangles.flatten(1).nonzero(as_tuple=True)
    sample = chosen[row]
    # the noise is a hash of the pixel's index, so that only erased pixels need a draw
    words = SampleRandom(rng.fork("erase noise").state[sample]).words_at(pixel)[:, : images.shape[1]]
    images.flatten(2).movedim(1, -1)[sample, pixel] = _quantiles(images.device)[words]
    return images


@cache
def _quantiles(device: torch.device) -> Tensor:
    """The standard normal's quantiles at 65,536 probabilities, up to 4.4 in magnitude: enough for noise."""
    probabilities = (torch.arange(65536, dtype=torch.float64) + 0.5) / 65536
    return torch.special.ndtri(probabilities).to(device, torch.float32)


def _rectangles(rng: SampleRandom, size: tuple[int, int]) -> Tensor:
    """Draw masks (b, h, w), True for erased pixels; all False if none of ten candidates fits."""
    shape = torch.full_like(rng.state, 1, dtype=torch.float64) * size[1] / size[0]
    boxes, fits = draw_boxes(rng.fork("erase box"), size, shape, scale=_AREA, ratio=_RATIO)
    row = torch.arange(size[0], device=rng.state.device)
    column = torch.arange(size[1], device=rng.state.device)
    rows = (row >= boxes.top[:, None]) & (row < (boxes.top + boxes.height)[:, None])
    columns = (column >= boxes.left[:, None]) & (column < (boxes.left + boxes.width)[:, None])
    return rows[:, :, None] & columns[:, None, :] & fits[:, None, None]
