"""The augmentation pipeline: from a uint8 batch to normalised, augmented images and mixed targets.

This module orders the steps and gives each its random stream; each step has a module of its own. Papers: Inception
crop (Szegedy et al. 2015), RandAugment (Cubuk et al. 2020), AutoAugment (Cubuk et al. 2019), 3-Augment (Touvron et al.
2022), random erasing (Zhong et al. 2020), Mixup (Zhang et al. 2018), CutMix (Yun et al. 2019).
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.config import AugmentConfig, Preprocessing, check
from vit.data.augment.crops import Boxes, evaluation_boxes, random_resized_boxes, shift_reflected
from vit.data.augment.erasing import erase_rectangles
from vit.data.augment.mixing import mixup_or_cutmix
from vit.data.augment.policies import apply_policy, jitter_colors, make_some_grey
from vit.data.augment.resampling import resample, resize_weights
from vit.data.preprocessing import normalize
from vit.randomness import SampleRandom

if TYPE_CHECKING:
    from vit.data.loading import TrainBatch


class Augment:
    """Batched augmentation as configured; stateless, so equal batches give equal results.

    The result for a sample depends on (seed, epoch, position), and with mixing on its group's positions. Growing images
    (`augment.first_image_size`) have sides that are multiples of `patch_size` and of `augment.size_step`; ValueError
    where none fits.
    """

    views: ClassVar[int] = 1
    """How often each image is augmented."""

    def __init__(
        self,
        config: AugmentConfig,
        preprocessing: Preprocessing,
        num_classes: int,
        *,
        patch_size: tuple[int, int] = (1, 1),
    ) -> None:
        self.config = config
        self.preprocessing = preprocessing
        self.num_classes = num_classes
        height, width = patch_size
        self._units = math.lcm(height, config.size_step), math.lcm(width, config.size_step)
        _check_growing(config, preprocessing.image_size, self._units)

    def image_size(self, epoch: int) -> tuple[int, int]:
        """Size (H, W) of the images of an epoch."""
        return image_size_at(epoch, self.config, self.preprocessing.image_size, self._units)

    def epochs_by_size(self, epochs: int) -> dict[tuple[int, int], int]:
        """How many of so many epochs have images of each size (H, W); no epoch is visited, as there may be millions."""
        counts, epoch = dict[tuple[int, int], int](), 0
        while epoch < epochs:  # sizes never fall
            size = self.image_size(epoch)
            end = bisect_right(range(epochs), size, lo=epoch, key=self.image_size)
            counts[size], epoch = end - epoch, end
        return counts

    def check_canvas(self, canvas: tuple[int, int]) -> None:
        """ValueError where `augment.pad` is not smaller than the images; (H, W) is the size they are decoded to."""
        rule = f"the padding is reflected, so it must be below the image's side ({min(canvas)} pixels)"
        check(self.config.crop != "pad" or self.config.pad < min(canvas), "augment.pad", self.config.pad, rule)

    @torch.no_grad()
    def __call__(self, batch: TrainBatch, *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Augment uint8 (b, 3, h, w): normalised float32 (b, 3, H, W), and targets float32 (b, k).

        A row of targets sums to 1, or for labels (b, k) to the image's number of labels. ValueError where
        `augment.pad` is not smaller than the images.
        """
        config, positions = self.config, batch.positions
        rng = SampleRandom.at(seed, epoch, positions)
        images = self._crop_and_flip(batch.images, batch.aspects, rng, self.image_size(epoch))
        images = apply_policy(images, rng, config)
        if config.color_jitter > 0:
            images = jitter_colors(images, rng, config.color_jitter)
        if config.grey_probability > 0:
            images = make_some_grey(images, rng, config.grey_probability)
        images = normalize(images, self.preprocessing)
        if config.erasing_probability > 0:
            images = erase_rectangles(images, batch.positions, config.erasing_probability, seed=seed, epoch=epoch)
        labels = batch.labels if batch.labels.ndim == 2 else F.one_hot(batch.labels, self.num_classes)
        targets = labels.to(torch.float32)
        if config.mixes:
            images, targets = mixup_or_cutmix(images, targets, positions, batch.weights, config, seed=seed, epoch=epoch)
        return images, targets

    def _crop_and_flip(self, images: Tensor, aspects: Tensor, rng: SampleRandom, size: tuple[int, int]) -> Tensor:
        config = self.config
        canvas = (images.shape[-2], images.shape[-1])
        mirrored = rng.fork("flip").uniform() < (0.5 if config.flip else 0.0)
        if config.crop == "pad":
            self.check_canvas(canvas)
            offset = rng.fork("crop").integers(2 * config.pad + 1, 2) - config.pad
            images, mirrored = shift_reflected(images, offset, mirrored), torch.zeros_like(mirrored)
        if config.crop == "random_resized":
            stream = rng.fork("crop")
            boxes = random_resized_boxes(stream, canvas, aspects, scale=config.scale, ratio=config.ratio)
        else:
            prepared = self.preprocessing
            boxes = evaluation_boxes(canvas, aspects, size, prepared.crop_fraction, squash=prepared.squash)
        if canvas != size or not boxes.cover(canvas):
            return self._resize(images, boxes, mirrored, size)
        if config.flip and config.crop != "pad":
            images = shift_reflected(images, images.new_zeros(len(images), 2, dtype=torch.int64), mirrored)
        return images

    def _resize(self, images: Tensor, boxes: Boxes, mirrored: Tensor, size: tuple[int, int]) -> Tensor:
        (num_rows, num_columns), (height, width) = images.shape[-2:], size
        random = self.config.crop == "random_resized"
        filter = self.config.interpolation if random else self.preprocessing.interpolation
        antialias = self.preprocessing.antialias
        rows = resize_weights(boxes.top, boxes.height, num_rows, height, filter=filter, antialias=antialias)
        columns = resize_weights(
            boxes.left, boxes.width, num_columns, width, filter=filter, antialias=antialias, mirrored=mirrored
        )
        return resample(images, rows, columns)


class TwoViews(Augment):
    """Every image augmented twice, independently: images (b, 2, 3, H, W), for losses that compare the two."""

    views = 2

    @torch.no_grad()
    def __call__(self, batch: TrainBatch, *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """As `Augment`, under a seed of its own for each view."""
        seeds = [zlib.crc32(f"view {view} of seed {seed}".encode()) for view in range(self.views)]
        images, targets = zip(
            *(super(TwoViews, self).__call__(batch, seed=each, epoch=epoch) for each in seeds), strict=True
        )
        return torch.stack(images, dim=1), targets[0]


def image_size_at(epoch: int, config: AugmentConfig, final: tuple[int, int], units: tuple[int, int]) -> tuple[int, int]:
    """Size (H, W) of an epoch's images: in the growing epochs smaller than `final`, and never than before.

    The longer side grows evenly; each side is rounded down to a multiple of its unit, but is at least one.
    """
    first, epochs, longer = config.first_image_size, config.growing_epochs, max(final)
    if first is None or epoch >= epochs:
        return final
    length = first * epochs + (longer - first) * epoch  # in units of 1 / epochs pixels
    height, width = (
        max(unit, side * length // (longer * epochs) // unit * unit) for side, unit in zip(final, units, strict=True)
    )
    return height, width


def _check_growing(config: AugmentConfig, final: tuple[int, int], units: tuple[int, int]) -> None:
    first, longer, unit = config.first_image_size, max(final), max(units)
    if first is None:
        return
    within = all(least <= side for side, least in zip(final, units, strict=True))
    rule = f"with the patch, sides are multiples of {units}, and the model's image size is {final}"
    check(within, "augment.size_step", config.size_step, rule)
    held = f"be at least {unit}, a multiple of patch and augment.size_step,"
    if config.size_step == 1:
        held = f"hold a patch ({unit})"
    rule = f"it must {held} and be below the model's image size ({longer})"
    check(unit <= first < longer, "augment.first_image_size", first, rule)
