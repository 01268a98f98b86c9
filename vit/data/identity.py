"""Whether images of one split are in another too, whatever their names: by the bytes of their files, or by pixels."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path

import torch

from vit.data.decoding import BrokenImage
from vit.data.file_source import FileSource
from vit.data.splits import Split
from vit.progress import tracked

_TAIL = 2**16
"""Bytes at the end of a file that are read; whole files would take hours for a million photographs."""
_THREADS = 16
"""That read files; on a network drive nearly all of the time is waiting."""


def count_shared(asked: Split, among: Split) -> int:
    """How many images of the first split are in the second too.

    Two files are one image if they are the same byte by byte; where a source has no files, decoded pixels are compared.
    So a copy in another size or format is not found (`duplicates` finds most), and what cannot be read is in no split.
    """
    if not (isinstance(asked.source, FileSource) and isinstance(among.source, FileSource)):
        return len(_in_both(asked, among, _of_pixels)[0])
    # images without compression that share a border have the same end, so those few are read whole
    asked, among = _in_both(asked, among, _of_end)
    return len(_in_both(asked, among, _of_whole)[0])


def file_identities(paths: Sequence[Path], what: str, *, whole: bool = False) -> list[str]:
    """Hexadecimal hashes of the length and the last 64 KiB of files; empty for one that cannot be read.

    Images without compression may share these and be different: `whole` hashes all of the files.
    """

    def identify(path: Path) -> str:
        try:
            return (_content(path) if whole else _of_path(path)).hex()
        except OSError:
            return ""

    with ThreadPoolExecutor(_THREADS) as threads:
        each = threads.map(identify, paths, chunksize=64)
        return list(tracked(each, f"identifying {what}", len(paths), unit="img", leave=False))


def count_copies(asked: Split, *among: Split) -> int:
    """How many files of the first split are files of the others too, byte by byte; splits without files count as empty.

    Files are read only where two have the same length, and no image is decoded. OSError for one that cannot be read.
    """
    wanted = paths_of(asked)
    others = [path for split in among for path in paths_of(split)]
    lengths = {path.stat().st_size for path in others} & {path.stat().st_size for path in wanted}
    known = {_content(path) for path in others if path.stat().st_size in lengths}
    return sum(_content(path) in known for path in wanted if path.stat().st_size in lengths)


def notes_of_copies(test: Split, *others: Split, most: int) -> list[str]:
    """A sentence where files of the test images are training or validation images too, byte by byte.

    Nothing where a split has more than `most` images, or a file cannot be read, which is said where it is needed.
    """
    if max(len(split) for split in (test, *others)) > most:
        return []
    try:
        copies = count_copies(test, *others)
    except OSError:
        return []
    share = f"{copies:,} of the {len(test):,} test images"
    return [f"{share} are training or validation images too, byte by byte; take them out of one"] if copies else []


def sizes_digest(split: Split) -> str:
    """12 hexadecimal digits that change where a file of the split has another size or is gone; without files empty.

    The split's fingerprint is of its names and labels.
    """
    paths, digest = paths_of(split), hashlib.sha256()
    for path in paths:
        try:
            size = path.stat().st_size
        except OSError:
            size = -1
        digest.update(f"{size}\n".encode())
    return digest.hexdigest()[:12] if paths else ""


def paths_of(split: Split) -> list[Path]:
    """The files of a split; none where images are no files."""
    source = split.source
    if not isinstance(source, FileSource):
        return []
    return [source.root / source.files[index] for index in split.indices.tolist()]


def _content(path: Path) -> bytes:
    with _opened(path) as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _in_both(asked: Split, among: Split, identify: Callable[[Split, int], bytes]) -> tuple[Split, Split]:
    """The images of each split whose identity is in the other too."""
    wanted, found = _identities(asked, identify, "test images"), _identities(among, identify, "training images")
    return _with_identity(asked, wanted, set(found.values())), _with_identity(among, found, set(wanted.values()))


def _with_identity(split: Split, identities: dict[int, bytes], wanted: set[bytes]) -> Split:
    chosen = [index for index, identity in identities.items() if identity in wanted]
    return Split(split.source, torch.tensor(chosen, dtype=torch.int64))


def _identities(split: Split, identify: Callable[[Split, int], bytes], what: str) -> dict[int, bytes]:
    """By the image's index; without those that cannot be read."""
    identities = dict[int, bytes]()
    for index in tracked(split.indices.tolist(), f"identifying {what}", len(split), unit="img", leave=False):
        try:
            identities[index] = identify(split, index)
        except (BrokenImage, OSError):
            continue
    return identities


def _of_end(split: Split, index: int) -> bytes:
    return _of_path(_path(split, index))


def _of_whole(split: Split, index: int) -> bytes:
    return _content(_path(split, index))


def _path(split: Split, index: int) -> Path:
    assert isinstance(split.source, FileSource)
    return split.source.root / split.source.files[index]


def _of_path(path: Path) -> bytes:
    with _opened(path) as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - _TAIL))
        return _digest(f"{length}\n", file.read())


def _opened(path: Path) -> BufferedReader:
    """Open a file. OSError for what is none: opening a named pipe would wait for its writer."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return path.open("rb")


def _of_pixels(split: Split, index: int) -> bytes:
    image = split.source.read(index)
    return _digest(f"{image.size}\n", image.tobytes())


def _digest(head: str, content: bytes) -> bytes:
    return hashlib.blake2b(head.encode() + content, digest_size=16).digest()
