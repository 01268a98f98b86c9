"""A source whose images are corrupted as they are read, before any model's own preprocessing.

So models of different input sizes are judged on the very same corrupted images, through the same loader as clean ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from vit.data.images import ImageSource
from vit.data.preprocessing import to_tensor
from vit.evaluation.corruptions import SMALLEST, check_corruption, corrupt

LARGEST = 256
"""Of the shorter side: larger images are resized to it first (bilinear), as for ImageNet-C; smaller than `SMALLEST`,
likewise.
"""


@dataclass(frozen=True)
class CorruptedSource:
    """`source` with one kind of corruption at one strength; labels, names and numbers stay.

    `strength` 0 is the clean image at the same size: what the loss of accuracy is measured from.
    """

    source: ImageSource
    kind: str
    strength: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_corruption(self.kind, self.strength or 1)

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
        """Always from the whole image: a JPEG decoded at a reduced scale would be another image."""
        image = _working_size(self.source.read(index))
        if self.strength == 0:
            return image
        pixels = to_tensor(image)[None]
        changed = corrupt(pixels, self.kind, self.strength, indices=torch.tensor([index]), seed=self.seed)[0]
        return Image.fromarray(changed.permute(1, 2, 0).numpy())  # h w c


def _working_size(image: Image.Image) -> Image.Image:
    shorter = min(image.size)
    wanted = min(max(shorter, SMALLEST), LARGEST)
    if shorter == wanted:
        return image
    width, height = (int(side * wanted / shorter) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)
