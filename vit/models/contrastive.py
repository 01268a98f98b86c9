"""The model of contrastive learning (SimCLR: Chen et al. 2020): an encoder, and the projection that is compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.models import Classifier
from vit.models.model import Model
from vit.randomness import SampleRandom

ENCODER = "encoder."
"""The first part of the names of the encoder's tensors."""


@dataclass(frozen=True)
class ProjectionConfig:
    """The shape of the projection: a layer of `hidden` values, and one of the `width` that are compared."""

    hidden: int
    width: int


class ContrastiveModel(Model):
    """Images `b 3 H W` -> unit vectors `b width`, alike for images that look alike. `config` is the encoder's."""

    def __init__(self, encoder: Classifier, shape: ProjectionConfig) -> None:
        """`encoder`: a model without a head, whose features the projection takes."""
        super().__init__()
        assert encoder.num_classes == 0, "the encoder has no head"
        self.config = encoder.config
        self.encoder = encoder
        first, second = nn.Linear(encoder.head_hidden_size, shape.hidden), nn.Linear(shape.hidden, shape.width)
        for layer in (first, second):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.projection = nn.Sequential(first, nn.GELU(), second)

    def forward(self, images: Tensor, *, rng: SampleRandom | None = None) -> Tensor:
        """Unit vectors float32; `rng` is the encoder's."""
        projected = self.projection(self.encoder(images, rng=rng))
        return F.normalize(projected.to(torch.promote_types(projected.dtype, torch.float32)), dim=1)

    @property
    def num_layers(self) -> int:
        return self.encoder.num_layers + 1

    def layer_of(self, parameter_name: str) -> int:
        """The projection comes after all of the encoder."""
        if parameter_name.startswith(ENCODER):
            return self.encoder.layer_of(parameter_name.removeprefix(ENCODER))
        return self.num_layers

    def no_weight_decay(self) -> set[str]:
        """Those of the encoder, and the projection's biases."""
        of_encoder = {f"{ENCODER}{name}" for name in self.encoder.no_weight_decay()}
        return of_encoder | {
            f"projection.{name}" for name, each in self.projection.named_parameters() if each.ndim <= 1
        }
