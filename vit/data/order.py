"""The order of images in an epoch, and its division into steps, processes and micro-batches.

The order is a pure function of (seed, epoch, number of images, length, repeats); the division of a step into chunks
never changes the content of the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vit.randomness import SampleRandom

_SPACING = 32
"""Distance between the copies of a repeated image: small enough for one batch, too large for one mixing group."""


def epoch_order(seed: int, epoch: int, num_images: int, repeats: int = 1, length: int | None = None) -> Tensor:
    """The image (0 … n-1) at each position of an epoch: int64 (length,); by default, length is n.

    Images come in endless passes, each in a new order over all of them; an epoch continues where the last one ended.

    With repeats r (repeated augmentation, Hoffer et al. 2020), the first ceil(length / r) images of that order are
    used, in runs: `_SPACING` images, the same images again in a new order, r times in all, then the next run. The
    copies of an image are thus near enough to share a batch, but have positions of their own (their augmentation
    differs) and are usually in different mixing groups.
    """
    length = num_images if length is None else length
    shuffled = _passes(seed, epoch * length, (epoch + 1) * length, num_images)
    if repeats == 1:
        return shuffled
    chosen = shuffled[: -(-length // repeats)]
    positions = torch.arange(len(chosen) * repeats)
    copy, rank = positions // len(chosen), positions % len(chosen)
    keys = SampleRandom.at(seed, epoch, positions).fork("copies").state
    laid_out = np.lexsort((keys.numpy(), copy.numpy(), rank.numpy() // _SPACING))
    return chosen[rank[torch.from_numpy(laid_out)]][:length]


def balanced_order(seed: int, epoch: int, labels: Tensor, length: int) -> Tensor:
    """The image (0 … n-1) at each position of an epoch, int64 (length,), with every class equally often.

    labels int64 (n,). The positions of all epochs are divided into blocks of one image per class, each block in its own
    order; the images of a class come in passes as in `epoch_order`, and an epoch continues where the last one ended.
    """
    classes = labels.unique()
    first, last = epoch * length, (epoch + 1) * length
    begin, end = first // len(classes), -(-last // len(classes))
    keys = SampleRandom.at(seed, 0, torch.arange(begin * len(classes), end * len(classes))).fork("classes").state
    slots = keys.reshape(end - begin, len(classes)).argsort(dim=1, stable=True).argsort(dim=1)  # blocks classes
    chosen = torch.empty_like(slots)
    for number, label in enumerate(classes.tolist()):
        members = torch.nonzero(labels == label).flatten()
        drawn = members[_passes(seed, begin, end, len(members), f"order {label}")]
        chosen.scatter_(1, slots[:, number : number + 1], drawn[:, None])
    start = begin * len(classes)
    return chosen.flatten()[first - start : last - start]


def _passes(seed: int, first: int, last: int, num_images: int, stream: str = "order") -> Tensor:
    """Entries `first` to `last` of endless passes over the images, each in a new order."""
    begin = first // num_images
    shuffled = [
        torch.argsort(SampleRandom.at(seed, number, torch.arange(num_images)).fork(stream).state, stable=True)
        for number in range(begin, -(-last // num_images))
    ]
    return torch.cat(shuffled)[first - begin * num_images : last - begin * num_images]


@dataclass(frozen=True)
class StepPlan:
    """The positions of every optimizer step, cut into `num_chunks` (micro-batches × processes).

    Chunks are contiguous and consist of whole mixing groups (positions // `group`). The last step takes what is left,
    and joins the one before if it would have fewer than `fewest_in_step` images, or a chunk of it fewer than `fewest`.
    """

    num_images: int
    batch_size: int
    num_chunks: int
    group: int
    fewest: int = 0
    fewest_in_step: int = 0

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
        whole, left = divmod(self.num_images, self.batch_size)
        smallest = min(len(self._cut(range(left), chunk)) for chunk in range(self.num_chunks))
        joins = whole > 0 and (smallest < self.fewest or left < self.fewest_in_step)
        return whole if left == 0 or joins else whole + 1

    def positions(self, step: int) -> range:
        """Return all positions of a step; the last step may be shorter, or longer by a few."""
        is_last = step == self.num_steps - 1
        return range(step * self.batch_size, self.num_images if is_last else (step + 1) * self.batch_size)

    def chunk(self, step: int, chunk: int) -> range:
        """Return the positions of one chunk; a short step is divided evenly, and some chunks may be empty."""
        return self._cut(self.positions(step), chunk)

    def _cut(self, positions: range, chunk: int) -> range:
        num_groups = -(-len(positions) // self.group)
        first, last = (bound * num_groups // self.num_chunks for bound in (chunk, chunk + 1))
        return positions[first * self.group : last * self.group]
