"""Which image stands at which position of an epoch, and which positions each process and micro-batch takes.

Arithmetic only. The order is a pure function of (seed, epoch, number of images, length, repeats); the division of a
step into chunks never changes what the step as a whole contains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vit.randomness import SampleRandom

_SPACING = 32
"""How far apart the copies of a repeated image stand: in one batch, but in different mixing groups."""


def epoch_order(seed: int, epoch: int, num_images: int, repeats: int = 1, length: int | None = None) -> Tensor:
    """Which image (0 … n-1) stands at each position of the epoch: int64 (length,); n long unless said otherwise.

    The images stand in passes, each of which has all of them in an order of its own; an epoch that is longer than n
    holds several passes, and the next epoch goes on where it ended.

    With repeats r (repeated augmentation, Hoffer et al. 2020), the first ceil(length / r) images of that order
    are chosen. They are laid out run by run: `_SPACING` images, the same images again in a new order, r
    times in all, then the next run. So the copies of an image are near enough to share a batch, and yet stand
    at positions of their own (their augmentation differs) and, as a rule, in mixing groups of their own.
    """
    length = num_images if length is None else length
    shuffled = _passes(seed, epoch * length, (epoch + 1) * length, num_images)
    if repeats == 1:
        return shuffled
    chosen = shuffled[: -(-length // repeats)]
    places = torch.arange(len(chosen) * repeats)
    copy, rank = places // len(chosen), places % len(chosen)
    keys = SampleRandom.at(seed, epoch, places).fork("copies").state
    laid_out = np.lexsort((keys.numpy(), copy.numpy(), rank.numpy() // _SPACING))
    return chosen[rank[torch.from_numpy(laid_out)]][:length]


def _passes(seed: int, first: int, last: int, num_images: int) -> Tensor:
    """Places `first` to `last` of endless passes over the images, each shuffled anew."""
    begin = first // num_images
    shuffled = [
        torch.argsort(SampleRandom.at(seed, number, torch.arange(num_images)).fork("order").state, stable=True)
        for number in range(begin, -(-last // num_images))
    ]
    return torch.cat(shuffled)[first - begin * num_images : last - begin * num_images]


@dataclass(frozen=True)
class StepPlan:
    """The positions of every optimizer step, cut into `num_chunks` (micro-batches × processes).

    Chunks are contiguous and made of whole mixing groups (positions // `group`), so that no group is ever
    divided.
    """

    num_images: int
    batch_size: int
    num_chunks: int
    group: int

    def __post_init__(self) -> None:
        if self.batch_size % (self.num_chunks * self.group) == 0:
            return
        unit = self.num_chunks * self.group
        below, above = self.batch_size // unit * unit, (self.batch_size // unit + 1) * unit
        groups = f" of whole groups of augment.mix_group ({self.group})" if self.group > 1 else ""
        raise ValueError(
            f"data.batch_size: {self.batch_size} is not valid: it must divide into {self.num_chunks} equal "
            f"micro-batches (train.accumulation_steps × processes){groups}; "
            f"the nearest that do are {f'{below} or ' if below else ''}{above}"
        )

    @property
    def num_steps(self) -> int:
        return -(-self.num_images // self.batch_size)

    def positions(self, step: int) -> range:
        """All positions of a step; the last step may be shorter."""
        return range(step * self.batch_size, min((step + 1) * self.batch_size, self.num_images))

    def chunk(self, step: int, chunk: int) -> range:
        """The positions of one chunk; a short step is spread evenly, and some chunks may be empty."""
        whole = self.positions(step)
        num_groups = -(-len(whole) // self.group)
        first, last = (place * num_groups // self.num_chunks for place in (chunk, chunk + 1))
        return whole[first * self.group : last * self.group]
