"""Images in an archive: it is unpacked once, beside it, and then read like any folder.

`photos.zip` becomes `photos.zip.unpacked/`, which is made anew where the archive has changed since.
"""

from __future__ import annotations

import fcntl
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO

from vit.config import DataConfig, check
from vit.progress import progress_bar

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
_STAMP = ".archive"
"""In the unpacked folder: size and time of the archive that it was made from."""
_SPARE = 0.9
"""Part of the free room on the disk that an archive may fill."""


def image_root(config: DataConfig) -> Path:
    """`data.root`; of an archive, the folder that it is unpacked to. ValueError for one that cannot be unpacked."""
    root = Path(config.root)
    return unpacked(root) if is_archive(root) and root.is_file() else root


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ARCHIVES)


def unpacked(archive: Path) -> Path:
    """The folder with the archive's files, which are unpacked where that was not done before.

    Of an archive with a single folder at its top, that folder. ValueError for a damaged or encrypted archive, for one
    that needs more room than there is, and for files that would lie outside the folder.
    """
    place = archive.with_name(f"{archive.name}.unpacked")
    stamp = f"{archive.stat().st_size} {archive.stat().st_mtime_ns}"
    if not _is_from(place, stamp):
        _unpack(archive, place, stamp)
    inside = [path for path in place.iterdir() if path.name != _STAMP]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else place


def _is_from(place: Path, stamp: str) -> bool:
    file = place / _STAMP
    return file.is_file() and file.read_text() == stamp


def _unpack(archive: Path, place: Path, stamp: str) -> None:
    named = f"data.root: {str(archive)!r}"
    if place.exists() and not (place / _STAMP).exists():
        raise ValueError(f"{named}: {str(place)!r}, where it would be unpacked, is there already; move it away")
    unfinished = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        # a tar with a zip near its end passes for a zip too
        is_zip = archive.suffix.lower() == ".zip" or (zipfile.is_zipfile(archive) and not tarfile.is_tarfile(archive))
        members = _members_of_zip if is_zip else _members_of_tar
        _write(members(archive), unfinished, archive)
    except (*_DAMAGES, OSError) as error:
        shutil.rmtree(unfinished)
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the archive's
            raise
        raise ValueError(f"{named} cannot be unpacked: {_reason(error)}") from error
    except BaseException:
        shutil.rmtree(unfinished)
        raise
    (unfinished / _STAMP).write_text(stamp)
    unfinished.chmod(archive.parent.stat().st_mode & 0o777)  # mkdtemp's is for its user alone
    # another process may unpack the same archive: what it has finished may be in use already
    old = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        with _one_at_a_time(archive):
            if not _is_from(place, stamp):
                with suppress(FileNotFoundError):
                    place.rename(old)  # if it were deleted in place, it could by then be another process's
                unfinished.rename(place)
    except OSError:
        if not _is_from(place, stamp):
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _one_at_a_time(archive: Path) -> Iterator[None]:
    """Let one process or thread of this host in at a time, where the file system has such locks."""
    with archive.open("rb") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    is_none = isinstance(error, zipfile.BadZipFile) and "not a zip file" in text
    if is_none or (isinstance(error, tarfile.ReadError) and "could not be opened" in text):
        return "it is cut short, or no archive of that kind"
    return text


_DAMAGES = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError),
    *(RuntimeError, NotImplementedError),  # zipfile's, for a password or a compression that it does not know
)
_Member = tuple[str, int, IO[bytes]]
"""Name, size in bytes, and the open file."""


def _members_of_zip(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            if not info.is_dir():
                yield info.filename, info.file_size, file.open(info)


def _members_of_tar(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive) as file:
        stored: dict[str, tarfile.TarInfo] = {}
        names: list[tarfile.TarInfo] = []
        left_out: set[str] = set()
        for info in file:
            if info.isfile():  # a symbolic link could point anywhere
                stored.setdefault(info.name, info)
                yield _member_of_tar(file, info, info.name)
            elif info.islnk() and info.linkname not in left_out:  # a file that has several names is stored once
                names.append(info)
            else:
                left_out.add(info.name)
        if lost := next((info for info in names if info.linkname not in stored), None):
            raise tarfile.ReadError(f"{lost.name!r} is a link to {lost.linkname!r}, which is not in it")
        for info in sorted(names, key=lambda info: stored[info.linkname].offset_data):  # compressed, it is read forward
            yield _member_of_tar(file, stored[info.linkname], info.name)
        assert file.fileobj is not None
        # tarfile takes a damaged header for the end of the archive, and a checksum behind the end is not read
        file.fileobj.seek(file.offset)
        if file.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError("a file's header is damaged")
        while file.fileobj.read(2**20):
            pass


def _member_of_tar(archive: tarfile.TarFile, info: tarfile.TarInfo, name: str) -> _Member:
    content = archive.extractfile(info)
    assert content is not None, "a file, no folder"
    return name, info.size, content


def _write(members: Iterator[_Member], place: Path, archive: Path) -> None:
    left = int(shutil.disk_usage(place).free * _SPARE)
    with progress_bar(f"unpacking {archive.name}", unit="file") as bar:
        for name, size, content in members:
            path = PurePosixPath(name.replace("\\", "/"))
            if not path.parts:
                continue
            outside = path.is_absolute() or ".." in path.parts or ":" in path.parts[0]
            check(not outside, "data.root", str(archive), f"its file {name!r} would lie outside the folder")
            if path.parts[0] == "__MACOSX" or path.name.startswith("."):
                continue
            left -= size
            check(left > 0, "data.root", str(archive), f"unpacked it needs more room than {place.parent} has")
            file = place / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with content, file.open("wb") as written:  # zipfile and tarfile read no more than the size that they say
                shutil.copyfileobj(content, written)
            bar.update(1)
