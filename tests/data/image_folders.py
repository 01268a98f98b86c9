"""Small image folders on disk, and damaged files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def picture(size: tuple[int, int], seed: int) -> Image.Image:
    """A smooth random RGB picture of (width, height)."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def make_folder(folder: Path, counts: dict[str, int], size: tuple[int, int] = (12, 12), suffix: str = "png") -> Path:
    """`counts[class]` pictures in `folder/<class>/`."""
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            picture(size, 100 * label + index).save(folder / name / f"{index:03d}.{suffix}")
    return folder


def truncate(path: Path, keep: float = 0.6) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
