"""Classification of single images: the most likely classes of each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vit.config import check, check_arguments
from vit.config.rules import nearest_path
from vit.data.archives import is_archive
from vit.data.decoding import BrokenImage, read_rgb
from vit.data.lists import LISTS, read_files
from vit.data.preprocessing import normalize, resize_and_crop
from vit.data.unlabelled import images_below
from vit.engine import make_accelerator
from vit.hub import OpenedModel
from vit.wording import counted

_LISTS = (".txt", ".lst", ".list")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


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
    """Yield the logits (k,) of every image. ValueError naming a file that is not a readable image.

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
            logits = model(normalize(pixels, opened.preprocessing))[0]
        yield path, logits


def find_images(places: Sequence[str], standard_input: Iterable[str] = ()) -> tuple[list[Path], list[str]]:
    """Image files: those given, those below folders, those that a text file lists by lines or a CSV list in its
    column of files, and for `-` those of the standard input. ValueError for an archive, and for a folder or a list
    without images.

    Lines name files relative to the working folder, or else to the list's; a CSV list the other way round. Beside the
    images, lines for the user about files that are not read, and about text files taken as lists.
    """
    images: list[Path] = []
    notes: list[str] = []
    for place in places:
        path = Path(place)
        if "://" in place:
            raise ValueError(f"image: {place!r} is not valid: images are read from files; download it first")
        if place == "-":
            found = _read_names(standard_input)
        elif path.is_dir():
            found, unread = images_below(path)
            notes += unread
        elif is_archive(path) and path.is_file():
            raise ValueError(f"image: {place!r} is an archive; unpack it first, and give its folder")
        elif path.suffix.lower() in _LISTS and path.is_file():
            lines = [line for line in _read_text(path).splitlines() if line.strip()]
            found = [Path(line) if Path(line).exists() else path.parent / line for line in lines]
            notes.append(f"{place} is read as a list of {counted(len(found), 'image')}, one a line")
        elif path.suffix.lower() in LISTS and path.is_file():
            found = [_nearest_to(path.parent, file) for file in read_files(path, f"image: {place!r} is not valid:")]
        else:
            found = [path]
        if not found:
            raise ValueError(f"image: {place!r} holds no images")
        images += found
    return images, notes


def _nearest_to(folder: Path, file: str) -> Path:
    return folder / file if (folder / file).exists() or not Path(file).exists() else Path(file)


def _read_names(lines: Iterable[str]) -> list[Path]:
    """Names, one a line. ValueError for bytes that are no text, as of an image itself."""
    try:
        names = [line.rstrip("\r\n") for line in lines if line.strip()]
    except UnicodeDecodeError:
        names = ["\0"]
    if any(_CONTROL.search(name) for name in names):
        raise ValueError("image: - reads names of images from the standard input, one a line; it holds no text")
    return list(map(Path, names))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"image: {str(path)!r} is not a list of images: it is not text in UTF-8") from error


def _read_image(path: Path) -> Image.Image:
    if not path.exists():
        near = nearest_path(path)
        raise ValueError(f"image: there is no file {str(path)!r}{near and f'; {near}'}")
    try:
        return read_rgb(path, str(path))
    except BrokenImage as error:
        raise ValueError(f"image: {str(path)!r} is not a readable image ({error.reason})") from error
