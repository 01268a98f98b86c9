"""The settings of a masked autoencoder's training: a Vision Transformer taught by images alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from vit.config.rules import check, check_finite, check_positive
from vit.config.run import ImageRun
from vit.config.sizes import MOST_CHANNELS, MOST_LAYERS, check_most


@dataclass(frozen=True, kw_only=True)
class MaskedAutoencoderConfig:
    """The `mae:` section (He et al. 2022)."""

    mask_ratio: float = 0.75
    """Fraction of an image's patches that the encoder does not see, and the decoder predicts."""
    normalize_pixels: bool = True
    """Predict each patch's pixels minus their mean, divided by their standard deviation."""
    decoder_width: int = 128
    """Width of the decoder's tokens."""
    decoder_depth: int = 2
    """Blocks of the decoder."""
    decoder_heads: int = 4
    """Attention heads of a block of the decoder."""
    knn_images: int = 5_000
    """Training images among which the neighbours of a validation image are searched, for `val.knn`."""

    def __post_init__(self) -> None:
        check_finite("mae", self)
        check(0 < self.mask_ratio < 1, "mae.mask_ratio", self.mask_ratio, "it must be between 0 and 1")
        limits = {"decoder_width": MOST_CHANNELS, "decoder_heads": MOST_CHANNELS, "decoder_depth": MOST_LAYERS}
        check_most("mae", self, limits)
        for name in limits:
            check_positive(f"mae.{name}", getattr(self, name))
        check(self.knn_images >= 20, "mae.knn_images", self.knn_images, "20 neighbours vote: it must be at least 20")


@dataclass(frozen=True, kw_only=True)
class MaskedAutoencoderRun(ImageRun):
    """Training a masked autoencoder."""

    evaluation_settings: ClassVar = ("data", "device", "train.precision")

    task: Literal["masked_autoencoder"] = "masked_autoencoder"
    mae: MaskedAutoencoderConfig = field(default_factory=MaskedAutoencoderConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = (
            "a masked autoencoder predicts an image's own pixels; set augment.mixup_alpha and augment.cutmix_alpha to 0"
        )
        check(not self.augment.mixes, "augment", "mixing", rule)
        rule = "all of the encoder is trained; leave it out"
        check(not self.model.freeze_backbone, "model.freeze_backbone", True, rule)


RUN = MaskedAutoencoderRun
