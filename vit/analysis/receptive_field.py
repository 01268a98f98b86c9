"""The effective receptive field of the central token after a block (Luo et al. 2016; Raghu et al. 2021, figure 6).

The gradient of a block's output at the centre by the pixels, its size averaged over images. For ViTs and ResNets.
The Jacobian's columns are measured along a few random directions for each image, whose noise would make the field look
more concentrated than it is: the brightest pixels are in part those that were drawn too bright. The jackknife over the
directions takes that bias off the field's numbers (to below 1 % with eight images), and gives their error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from scipy.stats import t as student
from torch import Tensor, nn

from vit.analysis.model_structure import crop_to_patches, forward_hooks, image_batches, patch_size, residual_blocks
from vit.analysis.tokens import block_patches, is_convolutional
from vit.config import check, check_arguments
from vit.config.rules import check_seed
from vit.evaluation.evaluate import evaluating

if TYPE_CHECKING:
    from vit.figures.style import Figure

DIRECTIONS = 4
"""For each image, unless said otherwise; as many backward passes for each block."""
CONVENTIONS = {
    "field": "root of the mean over images of the squared gradient, summed over the colours of a pixel, of the block's "
    "output at the centre (after the residual connections), taken in random directions of ±1 over the channels: in "
    "expectation the squared length of the Jacobian's column",
    "centre": "the patch in row gh // 2 and column gw // 2, counted from 0; a map's alike",
    "mean_distance": "pixels, of the field as weights, from the centre's middle",
    "half_area": "the smallest part of the image (of what the patches cover) that holds half of the field, of these "
    "images; the last pixel counts as far as it is needed",
    "bias": "mean_distance and half_area are corrected for the randomness of the directions by the jackknife",
    "interval": "95 % over the directions, not over images: jackknife error times Student's t",
    "uniform_mean_distance": "the same of a field that is equal everywhere, whose half_area is 0.5",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ReceptiveField:
    """The field of every block; row and column of the centre in pixels."""

    squares: Tensor
    """d l H W, float64, of the pixels that patches lie on: by direction, or one if all were taken."""
    layers: list[str]
    centres: Tensor
    """l 2"""
    num_images: int

    @property
    def fields(self) -> Tensor:
        """l H W"""
        return self.squares.mean(dim=0).sqrt()

    def mean_distance(self) -> Tensor:
        """l, pixels."""
        return _jackknife(lambda fields: _mean_distance(fields, self.centres), self.squares)[0]

    def half_area(self) -> Tensor:
        """l, between 0 and 1."""
        return _jackknife(_half_area, self.squares)[0]

    def half_area_interval(self) -> Tensor:
        """l 2, 95 %; both ends the same if all directions were taken."""
        value, error = _jackknife(_half_area, self.squares)
        return torch.stack([value - error, value + error], dim=1)

    def uniform_mean_distance(self) -> Tensor:
        """l, pixels, of a field that is equal everywhere."""
        return _mean_distance(torch.ones_like(self.fields), self.centres)

    def plot(self, title: str = "") -> Figure:
        """Draw the fields by block, and below them their mean distances."""
        from vit.figures import plot_receptive_field

        uniform = float(self.uniform_mean_distance()[0])
        return plot_receptive_field(self.fields, self.mean_distance().tolist(), uniform, title)

    def numbers(self) -> dict[str, Any]:
        return {
            "layers": self.layers,
            "mean_distance": self.mean_distance().tolist(),
            "half_area": self.half_area().tolist(),
            "half_area_interval": self.half_area_interval().tolist(),
            "uniform_mean_distance": self.uniform_mean_distance().tolist(),
            "centres": self.centres.tolist(),
            "num_images": self.num_images,
            "conventions": CONVENTIONS,
        }


@check_arguments
def effective_receptive_field(
    model: nn.Module, batches: Tensor | Iterable[Tensor], *, directions: int | None = DIRECTIONS, seed: int = 0
) -> ReceptiveField:
    """The field of every block, from normalised images `b 3 H W` all of one size; `seed` draws the directions.

    `directions` backward passes for each block and batch, at least 2; None: one for each channel, which gives the exact
    field. ValueError: no images; Unsupported: no known blocks.
    """
    check_seed("seed", seed)
    check(directions is None or directions >= 2, "directions", directions, "it must be at least 2, or None")
    generator = torch.Generator().manual_seed(seed)
    squares: Tensor | float = 0.0
    centres: list[tuple[float, float]] = []
    num_images, size = 0, None
    for images in image_batches(model, batches):
        height, width = images.shape[2:]
        size = size or (height, width)
        check((height, width) == size, "images", (height, width), f"all must be of the first one's size, {size}")
        found, centres = _squared_gradients(model, images, directions, generator)
        squares, num_images = squares + found, num_images + len(images)
    assert isinstance(squares, Tensor)
    return ReceptiveField(
        squares=squares / num_images,
        layers=list(residual_blocks(model)),
        centres=torch.tensor(centres, dtype=torch.float64),
        num_images=num_images,
    )


def _squared_gradients(
    model: nn.Module, images: Tensor, directions: int | None, generator: torch.Generator
) -> tuple[Tensor, list[tuple[float, float]]]:
    """Summed over images and colours, d l H W, and the centres; the sum over all directions is one."""
    outputs: dict[str, Tensor] = {}
    images = images.detach().clone().requires_grad_()
    blocks = residual_blocks(model)
    with torch.enable_grad(), evaluating(model), forward_hooks(blocks, outputs.__setitem__):
        model(images)
    squares, centres = [], []
    size = (images.shape[2], images.shape[3])
    for output in (outputs[name] for name in blocks):
        vectors, centre = _at_centre(model, output, size)
        count, channels = vectors.shape
        if directions is None:
            along = torch.eye(channels)[:, None]  # d 1 c
        else:
            along = torch.randint(0, 2, (directions, count, channels), generator=generator) * 2.0 - 1
        found = []
        for direction in along.to(vectors):
            (gradient,) = torch.autograd.grad((vectors * direction).sum(), images, retain_graph=True)
            seen = gradient if is_convolutional(model, output) else crop_to_patches(model, gradient)
            found.append(seen.double().square().sum(dim=(0, 1)).cpu())
        each = torch.stack(found)  # d H W
        squares.append(each.sum(dim=0, keepdim=True) if directions is None else each)
        centres.append(centre)
    return torch.stack(squares, dim=1), centres


def _at_centre(model: nn.Module, output: Tensor, size: tuple[int, int]) -> tuple[Tensor, tuple[float, float]]:
    """The vectors `b c` at the centre of what a block gives, tokens or a map, and where that is in pixels."""
    patches = block_patches(model, output, size)
    gh, gw = patches.shape[1:3]
    ph, pw = (size[0] / gh, size[1] / gw) if is_convolutional(model, output) else patch_size(model)
    row, column = gh // 2, gw // 2
    return patches[:, row, column], ((row + 0.5) * ph, (column + 0.5) * pw)


def _mean_distance(fields: Tensor, centres: Tensor) -> Tensor:
    rows, columns = (torch.arange(side, dtype=torch.float64) + 0.5 for side in fields.shape[1:])
    down, right = rows - centres[:, :1], columns - centres[:, 1:]  # l H, l W
    distances = (down.square()[:, :, None] + right.square()[:, None]).sqrt()
    return (fields * distances).sum(dim=(1, 2)) / fields.sum(dim=(1, 2))


def _half_area(fields: Tensor) -> Tensor:
    """The part of the pixels, brightest first, that holds half of the sum: l H W to l."""
    brightest = fields.flatten(1).sort(dim=1, descending=True).values
    held = brightest.cumsum(dim=1) - brightest.sum(dim=1, keepdim=True) / 2
    whole = (held < 0).sum(dim=1, keepdim=True)  # pixels before the one that reaches one half
    needed = 1 - held.gather(1, whole) / brightest.gather(1, whole)
    return (whole + needed)[:, 0] / brightest.shape[1]


def _jackknife(statistic: Callable[[Tensor], Tensor], squares: Tensor) -> tuple[Tensor, Tensor]:
    """A statistic of the field without its bias of first order in 1 / d (Quenouille 1956), and half the width of its
    95 % interval (Tukey 1958); of a single sum over all directions, the statistic and 0.
    """
    whole, count = statistic(squares.mean(dim=0).sqrt()), len(squares)
    if count == 1:
        return whole, torch.zeros_like(whole)
    others = (squares.sum(dim=0) - squares).clamp(min=0) / (count - 1)
    without = torch.stack([statistic(each.sqrt()) for each in others])  # d l
    centre = without.mean(dim=0)
    error = ((without - centre).square().sum(dim=0) * (count - 1) / count).sqrt()
    return count * whole - (count - 1) * centre, error * float(student.ppf(0.975, count - 1))
