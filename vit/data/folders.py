"""The data set `imagefolder`: a training and a test folder, each with one folder of images per class.

Which folders these are is in `parts`. Tiny-ImageNet's own `val/val_annotations.txt` is read as well. Folders without a
test set are in `undivided`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vit.config import DataConfig, check
from vit.config.part_names import part_named
from vit.config.rules import nearest_path
from vit.data.archives import image_root, is_archive
from vit.data.decoding import SUFFIXES, MissingImages, read_rgb
from vit.data.parts import (
    ANNOTATIONS,
    Parts,
    find_parts,
    folders_in,
    holds_images,
    is_image,
    listed,
    training_folder_in,
)
from vit.wording import counted

_LAYOUT = "expected {root}/<class>/*.jpg, or {root}/train/<class>/*.jpg and {root}/val/<class>/*.jpg (or test/)"
_SYSTEM_FILES = ("thumbs.db", "desktop.ini")
"""Files that Windows leaves in folders of images; macOS's are hidden ones."""


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


def check_root(config: DataConfig) -> None:
    """MissingImages where `data.root` is not there, as when it was moved."""
    root = Path(config.root)
    if not root.exists():
        near = nearest_path(root)
        remedy = f"; {near}" if near else "; if its images were moved, give their folder by --data.root"
        raise MissingImages(f"data.root: there is no folder {str(root.absolute())!r}{remedy}")


def open_training_folder(config: DataConfig) -> FileSource:
    """Open `<data.root>/train`. Validation and test folder, if any, are only checked for the same class names."""
    root, parts = image_root(config), find_parts(config)
    folder = parts.train or root / "train"
    if not folder.is_dir():
        _check_named_test_folder(config)
        raise MissingImages(f"data.root: no training images: {_missing(folder)}; {_remedy(root, parts)}")
    classes = class_folders(folder)
    for other in filter(None, (parts.validation, parts.test)):
        if (found := _classes_if_readable(other)) is not None:
            _check_same_classes(folder, classes, other, found)
    source = collect(root, folder, classes)
    said = (_said_of_validation(parts.validation, parts.test), *parts.notes) if parts.validation else parts.notes
    return replace(source, notes=(*said, *source.notes))


def _remedy(root: Path, parts: Parts) -> str:
    """An answer to a missing training folder."""
    others = [folder for folder in folders_in(root) if not part_named(folder.name) and not training_folder_in(folder)]
    classes = [folder.name for folder in others if parts.test and folder != parts.test and holds_images(folder)]
    return f"move the class folders {listed(classes)} into it" if classes else hint(root)


def _said_of_validation(validation: Path, test: Path | None) -> str:
    tested = test.name if test else "test"
    return f"{validation.name}/ chooses the best checkpoint, and {tested}/ is the test set (nothing is cut off)"


def open_validation_folder(config: DataConfig) -> FileSource | None:
    """Open the validation images that have a folder beside the test set's; None: they are cut off those of `train`."""
    parts = find_parts(config)
    return None if parts.validation is None else _open_beside(config, parts.validation)


def check_test_folder(config: DataConfig) -> None:
    """ValueError unless the test folder exists, is not the training folder, and has images of every class.

    Only names are read, no file is opened. A folder that cannot be listed yet is checked when it is opened.
    """
    check_root(config)
    folder, training = find_test_folder(config), _training_folder(config)
    _check_test_folder_exists(config, folder, training)
    if (classes := _classes_if_readable(folder)) is None:
        return
    _check_same_classes(training, class_folders(training), folder, class_folders(folder))
    for name in classes:
        if not any(is_image(path.name) for path in _files_below(folder / name, {})):
            raise _no_images(folder / name)


def _check_test_folder_exists(config: DataConfig, folder: Path, training: Path) -> None:
    root = image_root(config)
    if not folder.is_dir():
        field = "data.root" if config.test_folder is None else "data.test_folder"
        raise MissingImages(f"{field}: no test images: {_missing(folder)}; {hint(root)}")
    if training.is_dir() and folder.samefile(training):
        given = config.test_folder is not None
        what = f"data.test_folder: {config.test_folder!r}" if given else f"data.root: the link {str(folder)!r}"
        raise ValueError(f"{what} is not valid: it holds the training images; give a folder of other images")


def open_test_folder(config: DataConfig) -> FileSource:
    """Open the folder of `find_test_folder`. Its classes must be those of `train`."""
    folder = find_test_folder(config)
    _check_test_folder_exists(config, folder, _training_folder(config))
    return _open_beside(config, folder)


def _open_beside(config: DataConfig, folder: Path) -> FileSource:
    """Open a part beside the training folder, which must have the same classes."""
    root, training = image_root(config), _training_folder(config)
    if (folder / ANNOTATIONS).is_file():
        if not training.is_dir():
            raise ValueError(f"data.root: {ANNOTATIONS} needs the class folders of train/: {_missing(training)}")
        return _read_annotated(root, folder, class_folders(training))
    classes = class_folders(folder)
    if training.is_dir():
        _check_same_classes(training, class_folders(training), folder, classes)
    return collect(root, folder, classes)


def open_unlabelled(paths: Sequence[str]) -> FileSource:
    """Open image files, and all images below folders, with the single class ''.

    ValueError where there are none, and for archives.
    """
    files: list[str] = []
    notes: list[str] = []
    for path in map(Path, paths):
        archive = is_archive(path) and path.is_file()
        check(not archive, "--data", str(path), "it is an archive; unpack it first, and give its folder")
        if path.is_dir():
            images, unread = images_below(path)
            check(bool(images), "--data", str(path), "the folder holds no images")
            files += map(str, images)
            notes += unread
        else:
            check(path.is_file(), "--data", str(path), "it is not a file, a folder or the name of a data set")
            files.append(str(path))
    if not files:
        raise ValueError("--data: required: no model is a training run; give a data set's name, a folder or images")
    return FileSource(Path(), files, torch.zeros(len(files), dtype=torch.int64), [""], tuple(notes))


def images_below(folder: Path) -> tuple[list[Path], list[str]]:
    """All images below a folder, sorted, and a line about the other files, if there are any."""
    paths = list(_files_below(folder, {}, twice=True))
    others = Counter(path.suffix.lower() for path in paths if not is_image(path.name) and not _is_systems(path))
    return sorted(path for path in paths if is_image(path.name)), _notes_of_unread(others)


def _check_named_test_folder(config: DataConfig) -> None:
    """MissingImages for a `data.test_folder` that is not there, which is why no training folder is looked for."""
    root = image_root(config)
    if config.test_folder is not None and root.is_dir() and not (root / config.test_folder).is_dir():
        raise MissingImages(f"data.test_folder: no test images: {_missing(root / config.test_folder)}; {hint(root)}")


def find_test_folder(config: DataConfig) -> Path:
    """`data.test_folder`, else `test` or what it is called, else `val`."""
    return find_parts(config).test or image_root(config) / "val"


def _training_folder(config: DataConfig) -> Path:
    return find_parts(config).train or image_root(config) / "train"


def _missing(folder: Path) -> str:
    return f"there is no folder {str(folder.absolute())!r}"


def hint(root: Path) -> str:
    """A folder that `root` could mean: of a similar name, or the one in it that is laid out; else how folders are."""
    if not root.exists() and (near := nearest_path(root)):
        return near
    found = [str(folder) for folder in folders_in(root) if not part_named(folder.name) and _is_laid_out(folder)]
    return f"did you mean --data.root {found[0]}?" if len(found) == 1 else _LAYOUT.format(root=root)


def _is_laid_out(folder: Path) -> bool:
    """Whether a folder holds a training part, or several class folders, with images."""
    train = training_folder_in(folder)
    return sum(map(holds_images, folders_in(train or folder))) >= (1 if train else 2)


def class_folders(folder: Path, expected: str = "") -> list[str]:
    """List the class folders, sorted; ValueError if there are none, or images next to them.

    `expected` says how the folders should be. Runs that were written beside the classes are left out.
    """
    with os.scandir(folder) as entries:
        stray = sorted(entry.name for entry in entries if is_image(entry.name) and not entry.is_dir())
    classes = [path.name for path in folders_in(folder)]
    if stray:
        raise ValueError(
            f"data.root: {str(folder / stray[0])!r} is directly in {folder.name}/ and so has no class; "
            f"move every image into a folder of its class, {folder.name}/<class>/{stray[0]}"
        )
    if not classes:
        raise MissingImages(
            f"data.root: {str(folder)!r} holds no class folders; {expected or _LAYOUT.format(root=folder.parent)}"
        )
    return classes


def _classes_if_readable(folder: Path) -> list[str] | None:
    """List the class folders; None if that is not possible yet, and the test set is checked when it is opened."""
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK) or (folder / ANNOTATIONS).is_file():
        return None
    return [path.name for path in folders_in(folder)]


def _check_same_classes(training: Path, expected: list[str], folder: Path, found: list[str]) -> None:
    if expected == found:
        return
    if not found:
        rule = "it holds no class folders; give it those of the training images, or remove it"
        raise ValueError(f"data.root: {str(folder)!r} is not valid: {rule}")
    only_train, only_test = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    parts = [
        f"only in {where}/: {', '.join(map(repr, names[:3]))}{' …' if len(names) > 3 else ''} ({len(names)})"
        for where, names in ((training.name, only_train), (folder.name, only_test))
        if names
    ]
    raise ValueError(
        f"data.root: the classes of {str(training)!r} and {str(folder)!r} differ: {'; '.join(parts)}; "
        "make both hold the same class folders, or choose another data.test_folder"
    )


def collect(root: Path, folder: Path, classes: list[str]) -> FileSource:
    """All images below the class folders. ValueError for a class without any."""
    files: list[str] = []
    unread: Counter[str] = Counter()
    labels: list[int] = []
    visited: dict[tuple[int, int], str] = {}
    prefix = "" if folder == root else f"{Path(os.path.relpath(folder, root)).as_posix()}/"
    for label, name in enumerate(classes):
        paths = list(_files_below(folder / name, visited))
        images = sorted(path.relative_to(folder / name).as_posix() for path in paths if is_image(path.name))
        others = Counter(path.suffix.lower() for path in paths if not is_image(path.name) and not _is_systems(path))
        if not images:
            raise _no_images(folder / name, others)
        unread += others
        files += [f"{prefix}{name}/{image}" for image in images]
        labels += [label] * len(images)
    labels_of_files = torch.tensor(labels, dtype=torch.int64)
    return FileSource(root, files, labels_of_files, classes, (*_notes_of_hidden(folder), *_notes_of_unread(unread)))


def _notes_of_hidden(folder: Path) -> list[str]:
    """A line that names the hidden folders of images, which could have been meant as classes."""
    hidden = [path for path in sorted(folder.iterdir()) if path.name.startswith(".") and path.is_dir()]
    readable = [path for path in hidden if os.access(path, os.R_OK | os.X_OK)]  # unlike .Trashes on some disks
    named = [f"{path.name}/" for path in readable if any(is_image(file.name) for file in path.iterdir())]
    return [f"not used, being hidden: {listed(named)}"] if named else []


def _files_below(folder: Path, visited: dict[tuple[int, int], str], *, twice: bool = False) -> Iterator[Path]:
    """All files below that are not hidden, nor in a hidden folder (editors keep thumbnails and copies there).

    Links to folders are followed; `visited`: folders by device and inode.

    ValueError for a folder that is reached twice, whose images would count twice, in training and test; with `twice`,
    its files are given once.
    """
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__MACOSX")
        status = Path(parent).stat()
        first = visited.setdefault((status.st_dev, status.st_ino), parent)
        if first != parent and twice:
            folders.clear()
            continue
        if first != parent:
            raise ValueError(
                f"data.root: {first!r} and {parent!r} are one folder, by a link, and its images would count twice; "
                "remove the link"
            )
        yield from (Path(parent) / name for name in names if not name.startswith("."))


def _no_images(folder: Path, others: Counter[str] | None = None) -> ValueError:
    """`others`: suffixes of the files that are there."""
    instead = "".join(f", but {said}" for said in _unread(others or Counter()))
    return ValueError(
        f"data.root: class folder {str(folder)!r} holds no images "
        f"({', '.join(sorted(SUFFIXES))}){instead}; add some, or remove it here and in every other part"
    )


def _is_systems(path: Path) -> bool:
    return path.name.lower() in _SYSTEM_FILES


def _notes_of_unread(suffixes: Counter[str]) -> list[str]:
    return [f"not read: {said}; JPEG or PNG would be" for said in _unread(suffixes)]


def _unread(suffixes: Counter[str]) -> list[str]:
    """A text about files that are no images by their suffixes, if there are any."""
    ordered = sorted(suffixes.items(), key=lambda item: (-item[1], item[0]))
    said = [(count, f"{suffix} file" if suffix else "file") for suffix, count in ordered]
    texts = [counted(count, noun) + (" without a suffix" if noun == "file" else "") for count, noun in said]
    return [", ".join(texts)] if texts else []


def _read_annotated(root: Path, folder: Path, classes: list[str]) -> FileSource:
    """Read Tiny-ImageNet as Stanford publishes it: `val/images/*` with a table of file name, class and box."""
    try:
        lines = (folder / ANNOTATIONS).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"data.root: {folder / ANNOTATIONS} is not text in UTF-8") from error
    rows = [line.split("\t")[:2] for line in lines if line]
    if short := next((number for number, row in enumerate(rows, 1) if len(row) < 2), None):
        raise ValueError(f"data.root: {folder / ANNOTATIONS}: row {short} has no class behind a tab")
    if not rows:
        raise ValueError(f"data.root: {folder / ANNOTATIONS} has no rows")
    unknown = sorted({name for _, name in rows} - set(classes))
    if unknown:
        raise ValueError(f"data.root: {folder / ANNOTATIONS} names classes that train/ does not have: {unknown[:3]}")
    number = {name: label for label, name in enumerate(classes)}
    files = [f"{folder.relative_to(root).as_posix()}/images/{file}" for file, _ in rows]
    labels = torch.tensor([number[name] for _, name in rows], dtype=torch.int64)
    return FileSource(root, files, labels, classes)
