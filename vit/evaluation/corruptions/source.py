"""An image source that corrupts images as they are read, before any model's own preprocessing.

Models of different input sizes are thus evaluated on the same corrupted images, through the same loader as clean ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from vit.data.images import ImageSource
from vit.data.preprocessing import to_tensor
from vit.evaluation.corruptions import MIN_SIDE, check_corruption, corrupt

MAX_SIDE = 256
"""Images whose shorter side is longer are resized to it first (bilinear), as for ImageNet-C; those below `MIN_SIDE`, to
that.
"""


@dataclass(frozen=True)
class CorruptedSource:
    """`source` with one kind of corruption at one severity; labels, names and indices stay.

    `severity` 0 is the clean image at the same size, the reference for the loss of accuracy.
    """

    source: ImageSource
    kind: str
    severity: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_corruption(self.kind, self.severity or 1)

    @property
    def class_names(self) -> list[str]:
        return self.source.class_names

    @property
    def labels(self) -> Tensor:
        return self.source.labels

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:  # noqa: ARG002
        """Read and corrupt the whole image: a JPEG decoded at a reduced scale would be another image."""
        image = _working_size(self.source.read(index))
        if self.severity == 0:
            return image
        pixels = to_tensor(image)[None]
        changed = corrupt(pixels, self.kind, self.severity, indices=torch.tensor([index]), seed=self.seed)[0]
        return Image.fromarray(changed.permute(1, 2, 0).numpy())  # h w c


def _working_size(image: Image.Image) -> Image.Image:
    shorter = min(image.size)
    target = min(max(shorter, MIN_SIDE), MAX_SIDE)
    if shorter == target:
        return image
    width, height = (int(side * target / shorter) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)
