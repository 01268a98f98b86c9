"""Training a masked autoencoder: data, model, losses, validation."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from vit.config import check
from vit.data.augmented import AugmentedBatch
from vit.engine import Accelerator
from vit.models import VisionTransformer
from vit.models.masked_autoencoder import DecoderConfig, MaskedAutoencoder
from vit.models.model import ENCODER
from vit.randomness import SampleRandom
from vit.stopwatch import Timer, untimed
from vit.tasks.encoder_features import Neighbours, neighbours_among
from vit.tasks.images import ImageTask
from vit.tasks.masked_autoencoder.config import MaskedAutoencoderConfig, MaskedAutoencoderRun
from vit.tasks.masked_autoencoder.metrics import Evaluator, image_losses
from vit.tasks.task import NonFinite


class MaskedPrediction(ImageTask[MaskedAutoencoderRun]):
    """The `Task` of a `MaskedAutoencoderRun`. ValueError for any setting that cannot be honoured."""

    metric = "loss"
    higher_is_better = False
    accuracies = ("knn",)

    def __init__(self, config: MaskedAutoencoderRun, accelerator: Accelerator, timer: Timer = untimed) -> None:
        super().__init__(config, accelerator, timer)
        encoder = self.backbone
        rule = "patches are hidden from a Vision Transformer; a ResNet has none"
        if not isinstance(encoder, VisionTransformer):
            setting = "name" if config.model.name is not None else "pretrained"
            raise ValueError(f"model.{setting}: {getattr(config.model, setting)!r} is not valid: {rule}")
        self.autoencoder = MaskedAutoencoder(encoder, decoder_of(config.mae))
        first = self.train_loader.augment.image_size(0)
        rule = f"images begin at {first[0]}×{first[1]} pixels, which are one patch, and it has none to hide"
        has_patches = math.prod(encoder.embedding.grid_size(torch.empty(1, 3, *first, device="meta"))) > 1
        check(has_patches, "augment.first_image_size", config.augment.first_image_size, rule)
        searched = neighbours_among(self.train_split, config.mae.knn_images, "mae.knn_images")
        self.evaluator = Evaluator(
            accelerator, config.mae, Neighbours(accelerator, self.eval_loader(searched), "mae.knn_images")
        )

    @property
    def model(self) -> MaskedAutoencoder:
        return self.autoencoder

    @property
    def num_outputs(self) -> int:
        return 0

    def losses(self, model: nn.Module, batch: AugmentedBatch, epoch: int) -> tuple[Tensor, Tensor]:
        """Squared errors of the patches that were hidden, averaged over each image."""
        rng = SampleRandom.at(self.config.seed, epoch, batch.positions)
        losses = image_losses(model, batch.images, rng, self.config.mae, self.autoencoder.config.patch_size)
        return losses, losses.new_zeros(len(losses))

    def validate(self, model: nn.Module) -> dict[str, float]:
        """`loss`, and `knn`: accuracy of the encoder's frozen features by neighbours among training images."""
        loss = float(self.evaluator.losses(model, self.val_loader).mean())
        if not math.isfinite(loss):
            raise NonFinite("the loss of validation images is not finite")
        return {"loss": loss, "knn": self.evaluator.knn_accuracy(model, self.val_loader)[0]}

    def state(self) -> dict[str, Any]:
        """The encoder is a model by itself, whose tensors' names begin with `encoder`; it has no classes."""
        own = {"class_names": [], "encoder": ENCODER, "decoder": asdict(decoder_of(self.config.mae))}
        return {**super().state(), **own}


def decoder_of(config: MaskedAutoencoderConfig) -> DecoderConfig:
    return DecoderConfig(config.decoder_width, config.decoder_depth, config.decoder_heads)


open_task = MaskedPrediction
