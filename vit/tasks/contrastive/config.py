"""The settings of contrastive learning: an encoder that tells images apart, whichever way they are augmented."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vit.config.data import AugmentConfig
from vit.config.rules import check, check_finite, check_positive
from vit.config.run import ImageRun
from vit.config.sizes import MOST_CHANNELS, check_most


@dataclass(frozen=True, kw_only=True)
class ContrastiveConfig:
    """The `contrastive:` section (SimCLR, Chen et al. 2020)."""

    temperature: float = 0.2
    """Divisor of the cosine similarities: the lower it is, the more the most similar images count."""
    projection_hidden: int = 512
    """Width of the projection's hidden layer. The projection is left out of the trained encoder."""
    projection_width: int = 128
    """Width of the vectors that are compared."""
    knn_images: int = 5_000
    """Training images among which the neighbours of a validation image are searched, for `val.knn`."""

    def __post_init__(self) -> None:
        check_finite("contrastive", self)
        check_positive("contrastive.temperature", self.temperature)
        widths = ("projection_hidden", "projection_width")
        check_most("contrastive", self, dict.fromkeys(widths, MOST_CHANNELS))
        for name in widths:
            check_positive(f"contrastive.{name}", getattr(self, name))
        rule = "20 neighbours vote: it must be at least 20"
        check(self.knn_images >= 20, "contrastive.knn_images", self.knn_images, rule)


_VIEWS: dict[str, Any] = {
    "crop": "random_resized",
    "flip": True,
    "color_jitter": 0.4,
    "grey_probability": 0.2,
}


@dataclass(frozen=True, kw_only=True)
class ContrastiveRun(ImageRun):
    """Contrastive learning."""

    evaluation_settings: ClassVar = ("data", "device", "train.precision")

    task: Literal["contrastive"] = "contrastive"
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(**_VIEWS))
    """By default crops, flips, colours and grey (SimCLR)."""
    contrastive: ContrastiveConfig = field(default_factory=ContrastiveConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "an image is compared with its own other view; set augment.mixup_alpha and augment.cutmix_alpha to 0"
        check(not self.augment.mixes, "augment", "mixing", rule)
        rule = "two views are made of every image, and a copy of it in the same step would be held apart from them"
        check(self.augment.repeats == 1, "augment.repeats", self.augment.repeats, rule)
        check(self.data.sampling == "shuffled", "data.sampling", self.data.sampling, rule)
        check(self.data.epoch_length == "subset", "data.epoch_length", self.data.epoch_length, rule)
        augment = self.augment
        strengths = augment.color_jitter, augment.grey_probability, augment.erasing_probability
        varies = augment.crop != "none" or augment.flip or augment.policy != "none" or max(strengths) > 0
        rule = "the two views of an image would be the same; choose a crop, a policy or another augmentation"
        check(varies, "augment.crop", augment.crop, rule)
        rule = "the images of a step are compared with each other, so it cannot be cut; lower data.batch_size"
        check(self.train.accumulation_steps == 1, "train.accumulation_steps", self.train.accumulation_steps, rule)
        rule = "an image is told from the others of its step: it needs at least 2"
        check(self.data.batch_size >= 2, "data.batch_size", self.data.batch_size, rule)
        check(not self.model.freeze_backbone, "model.freeze_backbone", True, "all of the encoder is trained")


RUN = ContrastiveRun
