"""Image files as a command line names them: files, folders, lists, and names on the standard input."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from vit.data.archives import is_archive
from vit.data.lists import LISTS, read_files
from vit.data.unlabelled import images_below
from vit.wording import counted

_LISTS = (".txt", ".lst", ".list")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def find_image_paths(places: Sequence[str], standard_input: Iterable[str] = ()) -> tuple[list[Path], list[str]]:
    """Image files: those given, those below folders, those that a text file lists by lines or a CSV list in its
    column of files, and for `-` those of the standard input. ValueError for an archive, and for a folder or a list
    without images.

    Lines name files relative to the working folder, or else to the list's; a CSV list the other way round. Beside the
    images, lines for the user about files that are not read, and about text files taken as lists.
    """
    images: list[Path] = []
    notes: list[str] = []
    for place in places:
        path, unread = Path(place), list[str]()
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
            raise ValueError("; ".join([f"image: {place!r} holds no images", *unread]))
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
