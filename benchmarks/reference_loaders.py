"""Loaders of other libraries with a run's augmentation, for the benchmarks `data` and `epoch`.

Both decode and augment image by image, with PIL, in a torch `DataLoader`: torchvision's v2 transforms, and timm's
`create_loader`, which normalises and erases whole batches. Settings without a counterpart are refused. The remaining
differences do not affect the cost: torchvision mixes a whole batch with one ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from benchmarks.unsupported import as_unsupported
from vit.config import AugmentConfig, DataConfig, Preprocessing, check
from vit.data.splits import Split

Batches = Iterable[tuple[Tensor, Tensor]]
"""Normalised images `b 3 H W`, and labels (b,) or, mixed, targets `b k`."""


@dataclass(frozen=True)
class LoaderSpec:
    """Data, augmentation and device of a loader."""

    split: Split
    data: DataConfig
    augment: AugmentConfig
    preprocessing: Preprocessing
    num_classes: int
    device: torch.device
    keep: bool
    """Keep decoded images in memory, as ours does if they fit."""


class PilImages(Dataset[tuple[Any, int]]):
    """Decodes (or takes from memory) and transforms one image at a time, as most training scripts do."""

    def __init__(self, split: Split, *, keep: bool) -> None:
        self.split = split
        self.transform: Callable[[Image.Image], Any] | None = None
        indices = split.indices.tolist()
        self._kept = [split.source.read(index) for index in indices] if keep else None

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        index = int(self.split.indices[row])
        image = self.split.source.read(index) if self._kept is None else self._kept[row]
        assert self.transform is not None
        return self.transform(image), int(self.split.source.labels[index])


def check_shared(data: DataConfig, augment: AugmentConfig) -> None:
    """Raise ValueError for settings that no other loader has, because only ours would do their work."""
    crops = augment.crop == "random_resized"
    allowed: dict[str, tuple[Any, bool, str]] = {
        "augment.policy": (augment.policy, augment.policy != "three_augment", "three_augment"),
        "augment.magnitude": (
            augment.magnitude,
            augment.magnitude == round(augment.magnitude),
            "a part of a magnitude",
        ),
        "augment.magnitude_std": (augment.magnitude_std, augment.magnitude_std == 0, "a spread of magnitudes"),
        "augment.grey_probability": (
            augment.grey_probability,
            augment.grey_probability == 0,
            "images that turn grey at random",
        ),
        "augment.repeats": (augment.repeats, augment.repeats == 1, "repeated augmentation"),
        "augment.first_image_size": (augment.first_image_size, augment.first_image_size is None, "images that grow"),
        "data.on_broken_image": (
            data.on_broken_image,
            data.on_broken_image == "fail",
            "a way around broken images; use fail",
        ),
        "data.antialias": (data.antialias, data.antialias, "resizing without antialiasing"),
        "data.crop_fraction": (data.crop_fraction, crops or data.crop_fraction == 1, "a centre crop"),
    }
    for name, (value, is_allowed, what) in allowed.items():
        check(is_allowed, name, value, f"the compared loaders do not have {what}")


# ------------------------------------------------------------------ torchvision


def torchvision_loader(spec: LoaderSpec, workers: int) -> Batches:
    """Build torchvision's v2 transforms in a torch `DataLoader`."""
    dataset = PilImages(spec.split, keep=spec.keep)
    dataset.transform = _pil_transform(spec.augment, spec.preprocessing)
    return DataLoader(
        dataset,
        batch_size=spec.data.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=_mixing_collate(spec.augment, spec.num_classes),
    )


def _pil_transform(config: AugmentConfig, preprocessing: Preprocessing) -> Callable[[Any], Tensor]:
    """Build torchvision v2 transforms equivalent to the configured augmentation."""
    from torchvision.transforms import v2

    parts: list[Any] = []
    size = preprocessing.image_size
    if config.crop == "random_resized":
        filter = v2.InterpolationMode(config.interpolation)
        parts.append(v2.RandomResizedCrop(size, config.scale, config.ratio, interpolation=filter))
    else:
        shorter: Any = size[0] if size[0] == size[1] else size
        parts.append(v2.Resize(shorter, interpolation=v2.InterpolationMode(preprocessing.interpolation)))
        parts.append(v2.CenterCrop(size))
    if config.crop == "pad":
        parts.append(v2.RandomCrop(size, padding=config.pad, padding_mode="reflect"))
    if config.flip:
        parts.append(v2.RandomHorizontalFlip())
    if config.policy == "randaugment":
        parts.append(v2.RandAugment(config.num_ops, round(config.magnitude), num_magnitude_bins=11))
    elif config.policy.startswith("autoaugment"):
        parts.append(v2.AutoAugment(v2.AutoAugmentPolicy(config.policy.removeprefix("autoaugment_"))))
    if config.color_jitter:
        parts.append(v2.ColorJitter(*[config.color_jitter] * 3))
    parts += [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)]
    parts.append(v2.Normalize(preprocessing.mean, preprocessing.std))
    if config.erasing_probability:
        parts.append(v2.RandomErasing(config.erasing_probability))
    return v2.Compose(parts)


def _mixing_collate(augment: AugmentConfig, num_classes: int) -> Callable[[list[Any]], Any]:
    from torchvision.transforms import v2

    mixes: list[Any] = []
    if augment.mixup_alpha:
        mixes.append(v2.MixUp(alpha=augment.mixup_alpha, num_classes=num_classes))
    if augment.cutmix_alpha:
        mixes.append(v2.CutMix(alpha=augment.cutmix_alpha, num_classes=num_classes))
    if not mixes:
        return default_collate
    odds = [1 - augment.cutmix_probability, augment.cutmix_probability] if len(mixes) == 2 else None
    mix = v2.RandomApply([v2.RandomChoice(mixes, odds)], augment.mix_probability)
    return lambda samples: mix(*default_collate(samples))


# ------------------------------------------------------------------ timm


def timm_loader(spec: LoaderSpec, workers: int) -> Batches:
    """Build timm's `create_loader`, with its prefetcher. `Unsupported` for settings that it does not have."""
    from timm.data import create_loader

    augment, preprocessing = spec.augment, spec.preprocessing
    with as_unsupported():
        _check_timm(augment, spec.data.batch_size)
    level = f"rand-m{round(augment.magnitude)}-n{augment.num_ops}-mstd0-inc1"
    loader: Batches = create_loader(
        PilImages(spec.split, keep=spec.keep),
        (3, *preprocessing.image_size),
        spec.data.batch_size,
        is_training=True,
        scale=augment.scale,
        ratio=augment.ratio,
        hflip=0.5 if augment.flip else 0.0,
        color_jitter=augment.color_jitter or None,
        auto_augment=level if augment.policy == "randaugment" else None,
        interpolation=augment.interpolation,
        mean=preprocessing.mean,
        std=preprocessing.std,
        re_prob=augment.erasing_probability,
        re_mode="pixel",
        num_workers=workers,
        persistent_workers=True,
        collate_fn=_timm_mixing(augment, spec.num_classes),
        device=spec.device,
    )
    return loader


def _check_timm(augment: AugmentConfig, batch_size: int) -> None:
    rule = "timm's loader has random_resized alone"
    check(augment.crop == "random_resized", "augment.crop", augment.crop, rule)
    has_policy = augment.policy in ("none", "randaugment")
    check(has_policy, "augment.policy", augment.policy, "timm's loader has randaugment, and another AutoAugment")
    alone = not augment.color_jitter or augment.policy == "none"
    check(alone, "augment.color_jitter", augment.color_jitter, "timm's loader jitters colours instead of a policy")
    even = not augment.mixes or batch_size % 2 == 0
    check(even, "data.batch_size", batch_size, "timm's loader mixes images in pairs")


def _timm_mixing(augment: AugmentConfig, num_classes: int) -> Any:
    from timm.data import FastCollateMixup

    if not augment.mixes:
        return None  # timm then collates by itself
    return FastCollateMixup(
        mixup_alpha=augment.mixup_alpha,
        cutmix_alpha=augment.cutmix_alpha,
        prob=augment.mix_probability,
        switch_prob=augment.cutmix_probability,
        label_smoothing=0.0,  # the loss smooths, in every loop
        num_classes=num_classes,
    )


LOADERS: dict[str, Callable[[LoaderSpec, int], Batches]] = {"torchvision": torchvision_loader, "timm": timm_loader}
"""Library → its loader, from a specification and a number of workers."""
