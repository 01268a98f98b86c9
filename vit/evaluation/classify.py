"""Single images through a trained checkpoint: the classes it finds likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from vit.data.decoding import BrokenImage, read_rgb
from vit.data.preprocessing import normalize, resize_and_crop
from vit.engine import make_accelerator
from vit.hub import load_run


def classify(
    checkpoint: Path, images: Sequence[Path], device: str = "auto", most: int = 5
) -> list[tuple[Path, list[tuple[str, float]]]]:
    """For every image the `most` likeliest classes with their probabilities, likeliest first.

    Images are decoded as those of a data set and go through the checkpoint's own preprocessing. ValueError naming a
    file that is not a readable image.
    """
    loaded, _ = load_run(checkpoint)
    assert loaded.preprocessing is not None
    assert loaded.class_names is not None
    accelerator = make_accelerator(device, "fp32")
    model = loaded.model.to(accelerator.device).eval()
    results = []
    for path in images:
        pixels = resize_and_crop(_open(path), loaded.preprocessing)[None].to(accelerator.device)
        with torch.inference_mode():
            probabilities = model(normalize(pixels, loaded.preprocessing)).softmax(dim=1)[0]
        values, indices = probabilities.topk(min(most, len(loaded.class_names)))
        names = [loaded.class_names[index] for index in indices.tolist()]
        results.append((path, list(zip(names, values.tolist(), strict=True))))
    return results


def _open(path: Path) -> Image.Image:
    if not path.exists():
        raise ValueError(f"image: there is no file {str(path)!r}")
    try:
        return read_rgb(path, str(path))
    except BrokenImage as error:
        raise ValueError(f"image: {str(path)!r} is not a readable image ({error.reason})") from error
