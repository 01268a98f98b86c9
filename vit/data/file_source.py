"""Image files on disk as a source of samples, and what may not be written among them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from vit.config import check
from vit.config.part_names import part_named
from vit.data.decoding import read_rgb


@dataclass(frozen=True)
class FileSource:
    """Image files below `root`; `files` are relative to it, with forward slashes."""

    root: Path
    files: list[str]
    labels: Tensor
    """int64 (n,), or uint8 (n, k) where an image has any number of labels."""
    class_names: list[str]
    notes: tuple[str, ...] = ()
    """Lines about these files for the user: in the header of a run and in its model card."""
    listed: bool = False
    """Each file was named in a list, so that others beside them change nothing."""

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:
        return read_rgb(self.root / self.files[index], self.files[index], smallest)

    def name(self, index: int) -> str:
        return self.files[index]


def check_outside(option: str, folder: Path, source: object) -> None:
    """ValueError for an output among the images, where its files would be read as images or as a class."""
    if isinstance(source, FileSource):
        among = _lies_among(folder.resolve(), source)
        check(not among, option, str(folder), "it lies among the images; name a place elsewhere")


def _lies_among(folder: Path, source: FileSource) -> bool:
    root = source.root.resolve()
    if folder == root:
        return True
    if source.listed or root not in folder.parents:
        return False
    top, tops = folder.relative_to(root).parts[0], {file.partition("/")[0] for file in source.files}
    classes_at_root = not any(map(part_named, tops))
    return classes_at_root or top in tops or part_named(top) is not None


def notes_of(source: object) -> list[str]:
    """The lines for the user of a source of files; other sources have none."""
    return list(source.notes) if isinstance(source, FileSource) else []
