"""The model of contrastive learning (SimCLR: Chen et al. 2020): an encoder, and the projection that is compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.models import Classifier
from vit.models.model import EncoderModel
from vit.randomness import SampleRandom


@dataclass(frozen=True)
class ProjectionConfig:
    """The shape of the projection: a layer of `hidden` values, and one of the `width` that are compared."""

    hidden: int
    width: int


class ContrastiveModel(EncoderModel):
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
