"""Classification of single images, one after the other: the most likely classes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from vit.config import check, check_arguments
from vit.config.rules import nearest_path
from vit.data.decoding import BrokenImage, read_rgb
from vit.data.preprocessing import normalize, resize_and_crop
from vit.engine import make_accelerator
from vit.hub import OpenedModel
from vit.prediction.rows import Classes, check_finite, likeliest, most_classes


@check_arguments
def classify_images(
    opened: OpenedModel,
    images: Sequence[str | Path],
    device: str = "auto",
    top_k: int = 5,
    on_broken: Callable[[str], object] | None = None,
) -> list[tuple[Path, list[tuple[str, float]]]]:
    """Return for every image the `top_k` most likely classes with their probabilities, in descending order.

    Images are decoded as those of a data set and go through the model's own preprocessing; classes without names are
    numbered. ValueError for a model without a head or with any number of labels an image, and naming a file that is
    not a readable image; with `on_broken`, that receives the message, and the image is left out.
    """
    opened.check_single_label()
    found = predicted_classes(opened, [Path(each) for each in images], device, top_k, on_broken)
    return [(path, list(classes)) for path, classes in found]


def predicted_classes(
    opened: OpenedModel,
    images: Iterable[Path],
    device: str = "auto",
    top_k: int | None = None,
    on_broken: Callable[[str], object] | None = None,
) -> Iterator[tuple[Path, Classes]]:
    """As `classify_images`, of a multi-label model too; every image is given when it is done.

    `top_k` as `most_classes` takes it. A model without a head and a device that is not there are refused before the
    first image is asked for.
    """
    rule = "it has no head; `vit eval --transfer` evaluates its features"
    check(opened.num_classes > 0, "model", opened.source, rule)
    place = make_accelerator(device, "fp32").device
    return _classes_of_each(opened, opened.module_on(place).eval(), place, images, top_k, on_broken)


def _classes_of_each(
    opened: OpenedModel,
    model: nn.Module,
    place: torch.device,
    images: Iterable[Path],
    top_k: int | None,
    on_broken: Callable[[str], object] | None,
) -> Iterator[tuple[Path, Classes]]:
    for path in images:
        try:
            image = _read_image(path)
        except ValueError as error:
            if on_broken is None:
                raise
            on_broken(str(error))
            continue
        pixels = resize_and_crop(image, opened.preprocessing)[None].to(place)
        with torch.inference_mode():
            logits = model(normalize(pixels, opened.preprocessing)).cpu()
        check_finite(opened, [str(path)], logits)
        (classes,) = likeliest(opened, logits, most_classes(opened, top_k))
        yield path, classes


def _read_image(path: Path) -> Image.Image:
    if not path.exists():
        near = nearest_path(path)
        raise ValueError(f"image: there is no file {str(path)!r}{near and f'; {near}'}")
    try:
        return read_rgb(path, str(path))
    except BrokenImage as error:
        raise ValueError(f"image: {str(path)!r} is not a readable image ({error.reason})") from error
