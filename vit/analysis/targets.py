"""The target of an analysis: a model of any library with its preprocessing, and images.

Images are those of a data set, of a folder, single files or, by default, the two photographs that come with
scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from vit.analysis.profile import AttentionProfile, attention_profile
from vit.analysis.unsupported import Unsupported
from vit.config import DataConfig, Preprocessing, check, check_arguments
from vit.data.decoding import BrokenImage
from vit.data.images import MissingImages, Split, open_test, open_training
from vit.data.preprocessing import normalize, resize_and_crop
from vit.data.splits import balanced_subset
from vit.data.unlabelled import open_unlabelled
from vit.engine import check_one_process, make_accelerator
from vit.hub import OpenedModel, model_digest
from vit.progress import tracked

TRAINING_IMAGES = 4
"""Training images of a probe for each test image."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images as the model's preprocessing makes them."""

    pixels: Tensor
    """uint8 b 3 H W"""
    names: list[str]
    source: str
    """Where they are from, for people."""
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    data: DataConfig | None = None
    """The data set whose test images they are."""

    @property
    def fingerprint(self) -> str:
        """12 hexadecimal digits of the pixels, the labels and the settings of the data set."""
        digest = sha256(self.pixels.contiguous().numpy().tobytes())
        digest.update(repr((self.labels if self.labels is None else self.labels.tolist(), self.data)).encode())
        return digest.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True, eq=False)
class AnalysisTarget:
    """A model on its device, with the images that it is analysed on."""

    name: str
    model: nn.Module
    preprocessing: Preprocessing
    images: ImageSet
    class_names: tuple[str, ...] = ()
    """Classes of its head; empty where unknown."""
    has_head: bool = True
    """It gives logits, and not features in their place."""
    multilabel: bool = False
    """An image has any number of them."""
    implementation: str = "vit"
    """The package whose code computes it."""
    batch_size: int = 16
    against: AnalysisTarget | None = None
    """Another model with the same images, whose layers are compared."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def identity(self) -> str:
        """12 hexadecimal digits of its weights and of what computes with them."""
        return model_digest(self.model)

    @cached_property
    def profile(self) -> AttentionProfile:
        """The attention profile over all images; computed once."""
        total = math.ceil(len(self.images.names) / self.batch_size)
        return attention_profile(self.model, tracked(self.batches(), "attention", total, unit="batch", leave=False))

    @cached_property
    def probe_images(self) -> Split:
        """Training images of the data set that `images` are of, to fit a probe to. Unsupported where there are none."""
        if self.images.data is None:
            raise Unsupported("--data: it needs a data set, with images to train a probe on and others to test it")
        try:
            training = open_training(self.images.data)[0]
        except MissingImages as error:
            raise Unsupported(f"no images to train a probe on ({error})") from error
        return balanced_subset(training, TRAINING_IMAGES * len(self.images.names), stream="analysis")

    @property
    def has_matching_classes(self) -> bool:
        """Whether the classes of its head are those of the images."""
        return self.images.labels is not None and self.class_names == self.images.class_names

    def first(self, count: int) -> Tensor:
        """The first images, normalised, on the device."""
        return self.normalized(range(len(self.images.names))[:count])

    def normalized(self, places: Sequence[int]) -> Tensor:
        """The images at these places, normalised, on the device."""
        return normalize(self.images.pixels[list(places)].to(self.device), self.preprocessing)

    def batches(self, count: int | None = None, batch_size: int | None = None) -> Iterator[Tensor]:
        """Normalised images on the device; `count`: the first ones only."""
        for pixels in self.images.pixels[:count].split(batch_size or self.batch_size):
            yield normalize(pixels.to(self.device), self.preprocessing)

    def mixed_batches(self) -> Iterator[Tensor]:
        """All images in a random order, the same for every model: classes are mixed."""
        order = torch.randperm(len(self.images.names), generator=torch.Generator().manual_seed(0))
        for places in order.split(self.batch_size):
            yield normalize(self.images.pixels[places].to(self.device), self.preprocessing)


# ------------------------------------------------------------------ images


@check_arguments
def read_images(
    places: DataConfig | Split | Sequence[str], preprocessing: Preprocessing, num_images: int = 64
) -> ImageSet:
    """Read at most `num_images`: test images of a data set, or, without their labels, those of a split, of folders and
    of files; without places, two photographs.

    ValueError for a place that is neither file nor folder, and for a file that is no image; broken images of a data set
    are left out where its `on_broken_image` is 'skip'.
    """
    check(num_images > 0, "--images", num_images, "it must be above 0")
    if isinstance(places, DataConfig):
        place = places.root if places.name == "imagefolder" else places.name
        skips = places.on_broken_image == "skip"
        found = from_split(open_test(places), preprocessing, num_images, f"{place}, test", skip_broken=skips)
        return replace(found, data=places)
    if not places:
        return _photographs(preprocessing, num_images)
    if isinstance(places, Split):
        source, indices, name = places.source, places.indices, "the run's test images"
    else:
        source, name = open_unlabelled(places), ", ".join(places)
        indices = torch.arange(len(source))
    spread = torch.linspace(0, len(indices) - 1, min(num_images, len(indices))).round().long()
    chosen = replace(from_split(Split(source, indices[spread]), preprocessing, num_images, name), labels=None)
    return replace(chosen, class_names=(), names=[Path(name).name for name in chosen.names])


def from_split(
    split: Split, preprocessing: Preprocessing, num_images: int, source: str, *, skip_broken: bool = False
) -> ImageSet:
    """The pixels of a `balanced_subset` of a split.

    ValueError naming an image that cannot be read; with `skip_broken`, only where none can.
    """
    indices = balanced_subset(split, num_images, stream="analysis").indices
    read, pixels, broken = [], [], None
    for index in tracked(indices.tolist(), "reading", len(indices), unit="img", leave=False):
        try:
            pixels.append(resize_and_crop(split.source.read(index), preprocessing))
            read.append(index)
        except BrokenImage as error:
            broken = error
            if not skip_broken:
                break
    if broken is not None and not (skip_broken and read):
        raise ValueError(f"--data: {broken.name} is not a readable image ({broken.reason})") from broken
    return ImageSet(
        pixels=torch.stack(pixels),
        names=[split.source.name(index) for index in read],
        source=source,
        labels=split.source.labels[read],
        class_names=tuple(split.source.class_names),
    )


def _photographs(preprocessing: Preprocessing, num_images: int) -> ImageSet:
    from sklearn.datasets import load_sample_images

    found = load_sample_images()
    names = [Path(name).name for name in found.filenames][:num_images]
    pictures = [Image.fromarray(pixels) for pixels in found.images][:num_images]
    pixels = torch.stack([resize_and_crop(picture, preprocessing) for picture in pictures])
    return ImageSet(pixels=pixels, names=names, source="scikit-learn's two photographs")


# ------------------------------------------------------------------ both


@check_arguments
def open_target(
    opened: OpenedModel,
    images: ImageSet,
    *,
    against: AnalysisTarget | None = None,
    device: str = "auto",
) -> AnalysisTarget:
    """A model on its device with its images. `against`: another with the same images, in its own preprocessing."""
    accelerator = make_accelerator(device, "fp32")
    check_one_process(accelerator, "analyze", "figures are drawn")
    return AnalysisTarget(
        name=opened.name,
        model=opened.model.to(accelerator.device).eval(),
        preprocessing=opened.preprocessing,
        images=images,
        class_names=tuple(opened.class_names),
        has_head=opened.num_classes > 0,
        multilabel=opened.multilabel,
        implementation=opened.implementation,
        against=against,
    )
