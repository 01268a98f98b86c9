"""Settings of the images: data set, loading, preprocessing and augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from vit.config.arguments import check_types
from vit.config.part_names import part_named
from vit.config.rules import check, check_effect, check_finite, check_positive, check_seed
from vit.config.sizes import MOST_CHANNELS, MOST_PIXELS, MOST_SAMPLES, MOST_WORKERS, check_most

Interpolation = Literal["bilinear", "bicubic", "nearest"]
DATA_SETS = ("digits", "cifar10", "cifar100", "imagenette", "imagefolder", "fake", "torchvision:CLASS")
"""Values of `data.name`."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Preprocessing of images at evaluation. Stored with the weights and enforced."""

    image_size: tuple[int, int]
    crop_fraction: float = 1.0
    """The shorter side of the image is resized to image_size / crop_fraction, then the centre is cropped."""
    squash: bool = False
    """Both sides are resized to image_size / crop_fraction, whatever the image's shape (SigLIP, Hugging Face's ViT)."""
    crop_rounding: Literal["even", "down"] = "even"
    """Where an odd number of pixels is cut off: the crop's corner is rounded to the even pixel (torchvision, timm) or
    down (Hugging Face).
    """
    interpolation: Interpolation = "bicubic"
    antialias: bool = True
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Red, green and blue, whatever the channel order."""
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    channel_order: Literal["rgb", "bgr"] = "rgb"
    """The order of the normalised images that the model takes."""

    def __post_init__(self) -> None:
        check_types("data", self)
        check_finite("data", self)
        check_most("data", self, {"image_size": MOST_PIXELS})
        check(min(self.image_size) > 0, "data.image_size", self.image_size, "it must be above 0")
        check(0 < self.crop_fraction <= 1, "data.crop_fraction", self.crop_fraction, "it must be in (0, 1]")
        check(min(self.std) > 0, "data.std", self.std, "every entry must be above 0")


def is_data_set(name: str) -> bool:
    """True for a data set's name, also where a folder is called so."""
    return name in DATA_SETS or name.startswith("torchvision:")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    sets: ClassVar[tuple[str, ...]] = DATA_SETS
    folder_set: ClassVar[str] = "imagefolder"
    """The data set for `--data FOLDER`."""
    one_sets_settings: ClassVar = ("test_folder", "test_fraction", "download", "fake_images", "fake_classes")
    """Settings that do not carry over to another data set."""
    rootless_sets: ClassVar = ("digits", "fake")
    """Data sets without a folder."""

    name: str = "digits"
    """The data set; `imagefolder` is a folder of your own, `torchvision:CLASS` any classification set of torchvision's.
    """
    root: str = "data"
    """Folder of the data set, or where it is downloaded to; a CSV list of files and labels for `imagefolder`."""
    download: bool = False
    """Fetch the data set into `data.root` where it is missing."""
    test_folder: str | None = None
    """Folder of the test set below `data.root`, `imagefolder` only. None: `test`, or `val` where there is no `test`;
    where there is neither, a test set is split off the training images.
    """
    test_fraction: float = 0.2
    """`imagefolder` without a test set only: the part of every class that is split off for it; 1: all images are."""
    val_fraction: float = 0.1
    """Fraction of the training set held out to choose the best checkpoint; `val` is for that
    where there is `test` beside it.
    """
    split_seed: int = 0
    """Seed of the validation split and of a test set that is split off, independent of the training seed."""
    fraction: float = 1.0
    """Fraction of the training set to train on; smaller subsets are contained in larger ones, classes balanced."""
    subset_seed: int = 0
    """Seed of the subset for a `fraction` below 1; the validation split does not depend on it."""
    epoch_length: Literal["subset", "whole_set"] = "subset"
    """Images per epoch if `fraction` is below 1. `subset`: each image of the subset once; `whole_set`: as many images
    as the whole training set, repeating those of the subset. Steps, warm-up and evaluations then equal those of the
    full set.
    """
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    """`balanced`: an epoch has equally many images of every class; images of rare classes are repeated."""
    batch_size: int = 128
    """Images per optimizer step, over all processes and accumulated micro-batches."""
    eval_batch_size: int = 256
    """Images per forward pass of one process at evaluation."""
    workers: int = 2
    """Decoding processes of each training process; 0 decodes in the process itself."""
    cache_gib: float = 2.0
    """Data sets smaller than this when decoded are kept in memory as one uint8 tensor in every process; 0: never. In
    training on CUDA, the training set is kept on the device if it takes at most a tenth of its memory.
    """
    canvas_size: int | None = None
    """Side of the square that training images are resized to when decoded. None: 256/224 of the image size, or no
    resizing if all images have one size that is no larger.
    """
    on_broken_image: Literal["fail", "skip"] = "fail"
    """An image that cannot be decoded ends the run, or is left out and counted."""
    crop_fraction: float = 1.0
    """Fraction of the resized image's side that the centre crop keeps at evaluation; 1: all of it."""
    squash: bool = False
    """Resize both sides to the image size / crop_fraction, whatever the image's shape, at evaluation."""
    interpolation: Interpolation = "bicubic"
    """Filter that resizes images at decoding and at evaluation."""
    antialias: bool = True
    """Smooth an image before it is made smaller."""
    mean: tuple[float, float, float] | None = None
    """Subtracted from red, green and blue in [0, 1]. None: as the pretrained weights say, else 0.5."""
    std: tuple[float, float, float] | None = None
    """Red, green and blue are divided by it. None: as the pretrained weights say, else 0.5."""
    fake_images: int = 512
    """Number of training images, `fake` only; there are a quarter as many test images."""
    fake_classes: int = 10
    """Number of classes, `fake` only."""

    def is_set(self, place: str) -> bool:
        """Whether `--data PLACE` names images with labels: a data set, or a folder of class folders."""
        is_named = is_data_set(place)
        inside = Path(place).iterdir() if not is_named and Path(place).is_dir() else ()
        return is_named or any(path.is_dir() and part_named(path.name) for path in inside)

    def __post_init__(self) -> None:
        check_types("data", self)
        check_finite("data", self)
        for name in ("split_seed", "subset_seed"):
            check_seed(f"data.{name}", getattr(self, name))
        for name in ("batch_size", "eval_batch_size", "fake_images", "fake_classes", "canvas_size"):
            check_positive(f"data.{name}", getattr(self, name))
        most = {"workers": MOST_WORKERS, "canvas_size": MOST_PIXELS, "fake_classes": MOST_CHANNELS}
        check_most("data", self, most | {"fake_images": MOST_SAMPLES})
        check(self.root != "", "data.root", self.root, "name a folder, or a list of images")
        for name, values in (("mean", self.mean), ("std", self.std)):
            inside = all(0 <= value <= 1 for value in values or ())
            check(inside, f"data.{name}", values, "it is of pixels from 0 to 1; divide what is of 0 to 255 by 255")
        check(self.workers >= 0, "data.workers", self.workers, "it must be at least 0")
        check(self.cache_gib >= 0, "data.cache_gib", self.cache_gib, "it must be at least 0")
        check(0 < self.fraction <= 1, "data.fraction", self.fraction, "it must be in (0, 1]")
        check(0 < self.test_fraction <= 1, "data.test_fraction", self.test_fraction, "it must be in (0, 1]")
        check(0 < self.val_fraction < 1, "data.val_fraction", self.val_fraction, "it must be between 0 and 1")
        downloaded = self.name in ("cifar10", "cifar100", "imagenette") or self.name.startswith("torchvision:")
        needs = {
            "root": (self.name not in self.rootless_sets, "a data.name that has a folder"),
            "test_folder": (self.name == "imagefolder", "data.name 'imagefolder'"),
            "test_fraction": (self.name == "imagefolder", "data.name 'imagefolder'"),
            "fake_images": (self.name == "fake", "data.name 'fake'"),
            "fake_classes": (self.name == "fake", "data.name 'fake'"),
            "download": (
                downloaded,
                "a data.name that can be downloaded: cifar10, cifar100, imagenette, torchvision:CLASS",
            ),
            "subset_seed": (self.fraction < 1, "data.fraction below 1"),
            "epoch_length": (self.fraction < 1, "data.fraction below 1"),
        }
        check_effect("data", self, needs)
        self.preprocessing((1, 1))

    def preprocessing(self, image_size: tuple[int, int]) -> Preprocessing:
        return Preprocessing(
            image_size=image_size,
            crop_fraction=self.crop_fraction,
            squash=self.squash,
            interpolation=self.interpolation,
            antialias=self.antialias,
            mean=self.mean or Preprocessing.mean,
            std=self.std or Preprocessing.std,
        )


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Augmentation of training batches, in the order of the fields."""

    crop: Literal["none", "pad", "random_resized"] = "none"
    """Random crop of training images. `pad`: of the padded image (CIFAR); `random_resized`: of random area and shape,
    resized (ImageNet).
    """
    pad: int = 4
    """`crop: pad` only: pixels of reflection padding before the random crop."""
    scale: tuple[float, float] = (0.08, 1.0)
    """`crop: random_resized` only: area of the crop as a fraction of the image."""
    ratio: tuple[float, float] = (0.75, 4 / 3)
    """`crop: random_resized` only: width over height of the crop."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """Filter that resizes the crop, `crop: random_resized` only."""
    flip: bool = False
    """Mirror half of the images, left to right."""
    policy: Literal["none", "randaugment", "autoaugment_cifar10", "autoaugment_imagenet", "three_augment"] = "none"
    """Random operations on colours and geometry, as published under that name."""
    num_ops: int = 2
    """Operations per image, `policy: randaugment` only."""
    magnitude: float = 9.0
    """`policy: randaugment` only: 0 to 10 as in timm's rand-m9."""
    magnitude_std: float = 0.0
    """`policy: randaugment` only: standard deviation of the magnitude."""
    color_jitter: float = 0.0
    """Largest change of brightness, contrast and saturation, as a fraction; 0: none."""
    grey_probability: float = 0.0
    """Fraction of the images that lose their colours."""
    erasing_probability: float = 0.0
    """Fraction of the images in which a random rectangle is erased."""
    mixup_alpha: float = 0.0
    """Mixup: two images are averaged with a weight drawn from Beta(alpha, alpha); 0: off."""
    cutmix_alpha: float = 0.0
    """CutMix: a rectangle comes from another image, its area drawn from Beta(alpha, alpha); 0: off."""
    mix_probability: float = 1.0
    """Fraction of the mixing groups that are mixed."""
    cutmix_probability: float = 0.5
    """With both enabled: probability of CutMix rather than Mixup."""
    mix_group: int = 8
    """Images are mixed within groups of this many neighbours in the epoch's order."""
    repeats: int = 1
    """Repeated augmentation: each sampled image appears this often in an epoch, and fewer images are sampled."""
    first_image_size: int | None = None
    """Longer side of the images in the first epoch, growing to the model's size in whole patches; None: always the
    model's size. Tan and Le 2021 (progressive learning).
    """
    growing_epochs: int = 0
    """`first_image_size` only: epochs until the images have the model's size."""
    size_step: int = 1
    """`first_image_size` only: sides of growing images are multiples of this and of the patch. ResNets are slow at
    sides that their strides do not divide.
    """

    def __post_init__(self) -> None:
        check_types("augment", self)
        check_finite("augment", self)
        check_positive("augment.first_image_size", self.first_image_size)
        grows = self.growing_epochs > 0 or self.first_image_size is None
        check(grows, "augment.growing_epochs", self.growing_epochs, "with augment.first_image_size it must be above 0")
        check(0 < self.scale[0] <= self.scale[1] <= 1, "augment.scale", self.scale, "0 < low ≤ high ≤ 1")
        check(0 < self.ratio[0] <= self.ratio[1], "augment.ratio", self.ratio, "0 < low ≤ high")
        for name in ("grey_probability", "erasing_probability", "mix_probability", "cutmix_probability"):
            check(0 <= getattr(self, name) <= 1, f"augment.{name}", getattr(self, name), "it must be in [0, 1]")
        for name in ("mixup_alpha", "cutmix_alpha", "color_jitter", "magnitude_std"):
            check(getattr(self, name) >= 0, f"augment.{name}", getattr(self, name), "it must be at least 0")
        check(0 <= self.magnitude <= 10, "augment.magnitude", self.magnitude, "it must be in [0, 10]")
        for name in ("pad", "num_ops", "mix_group", "repeats", "size_step"):
            check(getattr(self, name) >= 1, f"augment.{name}", getattr(self, name), "it must be at least 1")
        check_most("augment", self, {"repeats": 1_000, "num_ops": 1_000, "pad": MOST_PIXELS, "size_step": MOST_PIXELS})
        check(self.mix_group >= 2, "augment.mix_group", self.mix_group, "a partner needs a group of at least 2")
        self._check_effects()

    def _check_effects(self) -> None:
        random_resized, randaugment = self.crop == "random_resized", self.policy == "randaugment"
        mixup, cutmix = self.mixup_alpha > 0, self.cutmix_alpha > 0
        needs = {
            "pad": (self.crop == "pad", "augment.crop 'pad'"),
            "scale": (random_resized, "augment.crop 'random_resized'"),
            "ratio": (random_resized, "augment.crop 'random_resized'"),
            "interpolation": (random_resized, "augment.crop 'random_resized'"),
            "num_ops": (randaugment, "augment.policy 'randaugment'"),
            "magnitude": (randaugment, "augment.policy 'randaugment'"),
            "magnitude_std": (randaugment, "augment.policy 'randaugment'"),
            "mix_probability": (mixup or cutmix, "augment.mixup_alpha or augment.cutmix_alpha above 0"),
            "mix_group": (self.mixes, "augment.mixup_alpha or augment.cutmix_alpha above 0"),
            "cutmix_probability": (mixup and cutmix, "augment.mixup_alpha and augment.cutmix_alpha above 0"),
            "growing_epochs": (self.first_image_size is not None, "augment.first_image_size"),
            "size_step": (self.first_image_size is not None, "augment.first_image_size"),
        }
        check_effect("augment", self, needs)
        check(
            self.mixes or not (mixup or cutmix),
            "augment.mix_probability",
            self.mix_probability,
            "it turns mixing off; to do that, set augment.mixup_alpha and augment.cutmix_alpha to 0",
        )
        unused = "cutmix_alpha" if self.cutmix_probability == 0 else "mixup_alpha"
        check(
            0 < self.cutmix_probability < 1 or not (mixup and cutmix),
            "augment.cutmix_probability",
            self.cutmix_probability,
            f"augment.{unused} would have no effect; set that to 0 instead",
        )

    @property
    def mixes(self) -> bool:
        return (self.mixup_alpha > 0 or self.cutmix_alpha > 0) and self.mix_probability > 0
