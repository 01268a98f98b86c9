"""Classification of single images: the most likely classes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vit.config import check, check_arguments
from vit.config.rules import nearest_path
from vit.data.decoding import BrokenImage, read_rgb
from vit.data.preprocessing import normalize, resize_and_crop
from vit.engine import make_accelerator
from vit.hub import OpenedModel
from vit.prediction.rows import check_finite


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
    check(
        opened.num_classes > 0, "model", opened.source, "it has no head; `vit eval --transfer` evaluates its features"
    )
    opened.check_single_label()
    class_names = opened.class_names or [f"class {number}" for number in range(opened.num_classes)]
    results = []
    for path, logits in image_logits(opened, [Path(each) for each in images], device, on_broken):
        values, indices = logits.softmax(dim=0).topk(min(top_k, len(class_names)))
        names = [class_names[index] for index in indices.tolist()]
        results.append((path, list(zip(names, values.tolist(), strict=True))))
    return results


def image_logits(
    opened: OpenedModel, images: Sequence[Path], device: str, on_broken: Callable[[str], object] | None = None
) -> Iterator[tuple[Path, Tensor]]:
    """Yield the logits (k,) of every image. ValueError naming a file that is not a readable image, or for which the
    logits are not finite.

    With `on_broken`, that receives the message, and the image is left out.
    """
    accelerator = make_accelerator(device, "fp32")
    model = opened.computing(accelerator.device).eval()
    for path in images:
        try:
            image = _read_image(path)
        except ValueError as error:
            if on_broken is None:
                raise
            on_broken(str(error))
            continue
        pixels = resize_and_crop(image, opened.preprocessing)[None].to(accelerator.device)
        with torch.inference_mode():
            logits = model(normalize(pixels, opened.preprocessing))
        check_finite(opened, [str(path)], logits)
        yield path, logits[0]


def _read_image(path: Path) -> Image.Image:
    if not path.exists():
        near = nearest_path(path)
        raise ValueError(f"image: there is no file {str(path)!r}{near and f'; {near}'}")
    try:
        return read_rgb(path, str(path))
    except BrokenImage as error:
        raise ValueError(f"image: {str(path)!r} is not a readable image ({error.reason})") from error
