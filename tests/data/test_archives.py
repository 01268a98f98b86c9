"""Archives of images: unpacked once, anew when they change, and never to anywhere else."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.data.image_folders import make_folder
from vit.config import DataConfig
from vit.data import archives
from vit.data.archives import ARCHIVES, image_root, unpacked

FORMATS = {".zip": "zip", ".tar": "tar", ".tar.gz": "gztar", ".tar.xz": "xztar", ".tar.bz2": "bztar"}


def names(folder: Path) -> set[str]:
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in files if path.name != ".archive"}


@pytest.mark.parametrize("format", FORMATS.values())
def test_an_archive_is_read_like_its_folder(format: str, tmp_path: Path) -> None:
    make_folder(tmp_path / "zoo", {"cat": 2, "dog": 1})
    archive = Path(shutil.make_archive(str(tmp_path / "images"), format, tmp_path, "zoo"))
    assert archive.name.endswith(ARCHIVES)
    root = image_root(DataConfig(name="imagefolder", root=str(archive)))
    assert root == tmp_path / f"{archive.name}.unpacked" / "zoo"
    assert names(root) == names(tmp_path / "zoo") == {"cat/000.png", "cat/001.png", "dog/000.png"}
    assert (root / "cat/001.png").read_bytes() == (tmp_path / "zoo/cat/001.png").read_bytes()


def test_it_is_unpacked_once_and_anew_when_it_changes(tmp_path: Path) -> None:
    make_folder(tmp_path / "zoo", {"cat": 1, "dog": 1})
    archive = Path(shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "zoo"))
    root = unpacked(archive)
    (root / "mine").touch()
    assert (unpacked(archive) / "mine").exists()
    time.sleep(0.01)
    make_folder(tmp_path / "zoo", {"eel": 1})
    shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "zoo")
    assert names(unpacked(archive)) == {"cat/000.png", "dog/000.png", "eel/000.png"}
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_content_is_one_line_and_leaves_nothing(suffix: str, tmp_path: Path) -> None:
    make_folder(tmp_path / "zoo", {"cat": 9, "dog": 9})
    archive = Path(shutil.make_archive(str(tmp_path / "images"), FORMATS[suffix], tmp_path / "zoo"))
    content = bytearray(archive.read_bytes())
    # without a checksum only headers tell
    start = content.index(b"dog/004.png") if suffix == ".tar" else len(content) // 3
    for place in range(start, start + 64):
        content[place] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.root: '.*images.*' cannot be unpacked: "):
        unpacked(archive)
    assert {path.name for path in tmp_path.iterdir()} == {"zoo", archive.name}


def test_what_another_process_has_finished_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "zoo", {"cat": 1, "dog": 1})
    archive = Path(shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "zoo"))
    own, calls = archives._write, list[str]()

    def write(*arguments: Any) -> None:
        calls.append("begun")
        if len(calls) == 1:
            (unpacked(archive) / "in use").touch()
        own(*arguments)

    monkeypatch.setattr(archives, "_write", write)
    assert (unpacked(archive) / "in use").exists()
    assert len(calls) == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_another_process_has_made_anew_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "zoo", {"cat": 1, "dog": 1})
    archive = Path(shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "zoo"))
    unpacked(archive)
    os.utime(archive, (9, 9))  # as if it had changed
    own, calls = shutil.rmtree, list[str]()

    def rmtree(*arguments: Any, **options: Any) -> None:
        calls.append("begun")
        if len(calls) == 1:
            (unpacked(archive) / "in use").touch()
        own(*arguments, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert (unpacked(archive) / "in use").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_of_two_at_once_one_puts_its_folder_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "zoo", {"cat": 1, "dog": 1})
    archive = Path(shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "zoo"))
    place = unpacked(archive)
    os.utime(archive, (9, 9))
    own, rename, both, put = archives._is_from, Path.rename, threading.Barrier(2), list[Path]()

    def is_from(place: Path, stamp: str) -> bool:
        answer = own(place, stamp)
        with suppress(threading.BrokenBarrierError):  # where the other one waits for its turn
            both.wait(0.2)
        return answer

    def noted(path: Path, target: Path) -> Path:
        put.append(target)
        return rename(path, target)

    monkeypatch.setattr(archives, "_is_from", is_from)
    monkeypatch.setattr(Path, "rename", noted)
    threads = [threading.Thread(target=unpacked, args=(archive,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert put.count(place) == 1
    assert names(place) == {"cat/000.png", "dog/000.png"}


def test_the_folder_is_open_to_those_to_whom_the_archive_is(tmp_path: Path) -> None:
    make_folder(tmp_path / "zoo", {"cat": 1, "dog": 1})
    tmp_path.chmod(0o755)
    root = unpacked(Path(shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "zoo")))
    assert root.stat().st_mode & 0o777 == 0o755


def zip_of(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tar_of(path: Path, files: dict[str, bytes], link: str | None = None) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link is not None:
            info = tarfile.TarInfo("cat/link.png")
            info.type, info.linkname = tarfile.SYMTYPE, link
            archive.addfile(info)
    return path


def test_a_tar_with_a_zip_in_it_is_a_tar(tmp_path: Path) -> None:
    inner = zip_of(tmp_path / "labels.zip", {"notes.txt": b"inside"}).read_bytes()
    archive = tar_of(tmp_path / "photos.tar", {"cats/1.jpg": b"x", "dogs/2.jpg": b"y", "labels.zip": inner})
    assert names(unpacked(archive)) == {"cats/1.jpg", "dogs/2.jpg", "labels.zip"}


@pytest.mark.parametrize("name", ["../out.png", "/out.png", "cat/../../out.png", "C:/out.png", "..\\out.png"])
@pytest.mark.parametrize("make", [zip_of, tar_of])
def test_no_file_is_written_outside(make: Callable[..., Path], name: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    archive = make(place / ("a.zip" if make is zip_of else "a.tar"), {"cat/0.png": b"x", name: b"x"})
    with pytest.raises(ValueError, match=r"data\.root: .* its file .*out\.png' would lie outside the folder"):
        unpacked(archive)
    assert [path.name for path in place.iterdir()] == [archive.name]
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_links_and_what_macos_adds_are_left_out(tmp_path: Path) -> None:
    files = {"cat/0.png": b"x", "dog/0.png": b"y", "__MACOSX/cat/._0.png": b"z", "cat/.DS_Store": b"z"}
    root = unpacked(tar_of(tmp_path / "a.tar", files, link="/etc/passwd"))
    assert names(root) == {"cat/0.png", "dog/0.png"}


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_a_file_of_several_names_has_all_of_them(suffix: str, tmp_path: Path) -> None:
    for name, content in {"all/0.png": b"zero", "all/1.png": b"one"}.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(content)
    for number in (1, 0):  # links to the later one first
        other = tmp_path / "images" / f"train{number}.png"
        os.link(tmp_path / "images" / "all" / f"{number}.png", other)
    archive = tmp_path / f"a{suffix}"
    with tarfile.open(archive, "w:gz" if suffix == ".tar.gz" else "w") as file:
        file.add(tmp_path / "images" / "all", "all")
        for number in (1, 0):
            file.add(tmp_path / "images" / f"train{number}.png", f"train/cat/{number}.png")
        assert sum(info.islnk() for info in file) == 2
    root = unpacked(archive)
    assert names(root) == {"all/0.png", "all/1.png", "train/cat/0.png", "train/cat/1.png"}
    assert [(root / "train/cat" / f"{number}.png").read_bytes() for number in (0, 1)] == [b"zero", b"one"]


def test_a_second_name_of_a_symbolic_link_is_left_out_like_it(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a.tar", {"cat/0.png": b"x", "dog/0.png": b"y"}, link="/etc/passwd")
    with tarfile.open(archive, "a") as file:
        info = tarfile.TarInfo("cat/second.png")
        info.type, info.linkname = tarfile.LNKTYPE, "cat/link.png"
        file.addfile(info)
    assert names(unpacked(archive)) == {"cat/0.png", "dog/0.png"}


def test_a_second_name_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("cat/0.png")
        info.type, info.linkname = tarfile.LNKTYPE, "all/0.png"
        archive.addfile(info)
    with pytest.raises(ValueError, match=r"'cat/0.png' is a link to 'all/0.png', which is not in it"):
        unpacked(tmp_path / "a.tar")


def test_a_folder_that_is_there_already_is_not_touched(tmp_path: Path) -> None:
    archive = zip_of(tmp_path / "a.zip", {"cat/0.png": b"x"})
    (tmp_path / "a.zip.unpacked").mkdir()
    with pytest.raises(ValueError, match=r"where it would be unpacked, is there already"):
        unpacked(archive)
    assert list((tmp_path / "a.zip.unpacked").iterdir()) == []


def test_a_disk_too_small_is_told_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zip_of(tmp_path / "a.zip", {f"cat/{number}.png": bytes(1000) for number in range(4)})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3000))
    with pytest.raises(ValueError, match=r"unpacked it needs more room than"):
        unpacked(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_damaged_archive_leaves_nothing(tmp_path: Path) -> None:
    archive = zip_of(tmp_path / "a.zip", {"cat/0.png": bytes(range(256)) * 40})
    data = bytearray(archive.read_bytes())
    data[200] ^= 255
    archive.write_bytes(data)
    with pytest.raises(ValueError, match=r"a\.zip' cannot be unpacked: Bad CRC-32"):
        unpacked(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
