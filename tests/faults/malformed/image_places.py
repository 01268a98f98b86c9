"""Malformed images in the places where a user has them: given to `predict`, in a folder that is trained on, skipped."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from safetensors.torch import save_file

from tests.data.image_folders import make_folder, picture
from tests.faults.malformed.images import Make, refused, taken
from tests.faults.malformed.trials import Case
from tests.faults.malformed.weights import resnet
from tests.training.tiny import tiny
from vit.settings import dump_run_config

SKIP = ("--data.on_broken_image", "skip")
_PREDICT = ("predict", "m.safetensors", "x.jpg", "--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5")
TRAIN = ("train", "--config", "recipe.yaml", "--output_dir", "run", "--train.epochs", "1")


@cache
def recipe() -> str:
    return dump_run_config(
        tiny(data={"name": "imagefolder", "root": "photos", "fake_images": 512, "fake_classes": 10}), {}
    )


def in_predict(write: Callable[[Path], object], folder: Path) -> None:
    """The image x.jpg and a small model."""
    save_file(resnet(), folder / "m.safetensors")
    write(folder)


def in_training(write: Callable[[Path], object], folder: Path) -> None:
    """The image x.jpg among training images, in a folder with a test part of its own."""
    make_folder(folder / "photos" / "train", {"cat": 6, "dog": 6})
    make_folder(folder / "photos" / "val", {"cat": 1, "dog": 1})
    (folder / "recipe.yaml").write_text(recipe())
    write(folder / "photos" / "train" / "cat")


def _write(make: Make, folder: Path) -> None:
    (folder / "x.jpg").write_bytes(make())


# ------------------------------------------------------------------ what is no file


def _pipe(folder: Path) -> None:
    os.mkfifo(folder / "x.jpg")


def _socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        here = Path.cwd()
        os.chdir(folder)  # a socket's name is short
        opened.bind("x.jpg")
        os.chdir(here)


PLACES: dict[str, Callable[[Path], object]] = {
    "a pipe": _pipe,
    "a socket": _socket,
    "a link to itself": lambda folder: (folder / "x.jpg").symlink_to("x.jpg"),
    "a link to nothing": lambda folder: (folder / "x.jpg").symlink_to("no.jpg"),
    "a link to endless zeros": lambda folder: (folder / "x.jpg").symlink_to("/dev/zero"),
    "a link to a terminal": lambda folder: (folder / "x.jpg").symlink_to("/dev/ptmx"),
}

# ------------------------------------------------------------------ folders


def _photos(folder: Path) -> Path:
    in_training(lambda inner: None, folder)  # noqa: ARG005
    return folder / "photos"


def _linked(link: str, target: str, folder: Path) -> None:
    (_photos(folder) / link).symlink_to(_photos_relative(folder, target), target_is_directory=True)


def _photos_relative(folder: Path, target: str) -> Path:
    return (folder / "photos" / target).resolve()


def _folder_named_as_image(folder: Path) -> None:
    (_photos(folder) / "train/cat/x.jpg").mkdir()


def _nested(folder: Path) -> None:
    deep = _photos(folder) / "train/cat" / "/".join("abcdefgh")
    deep.mkdir(parents=True)
    picture((9, 9), 1).save(deep / "x.jpg")


def _empty_class(folder: Path) -> None:
    (_photos(folder) / "train/eel").mkdir()
    (folder / "photos/val/eel").mkdir()


FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "links to itself": (partial(_linked, "train/cat/again", "train/cat"), "are one folder, by a link"),
    "links to its parent": (partial(_linked, "train/cat/up", "train"), "are one folder, by a link"),
    "links to the whole": (partial(_linked, "train/dog/all", "."), "are one folder, by a link"),
    "has a class that is a link to another": (partial(_linked, "train/eel", "train/cat"), "only in train/: 'eel'"),
    "holds a class twice, by a link inside": (
        partial(_linked, "train/dog/cats", "train/cat"),
        "are one folder, by a link",
    ),
    "has an empty class": (_empty_class, "holds no images"),
}
FOLDERS_TAKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "holds a folder named as an image": (_folder_named_as_image, "a folder is searched, whatever its name"),
    "is nested eight times": (_nested, "all images below a class are of it"),
}


def cases_of_predict() -> list[Case]:
    found = [
        Case(f"predict: {name}", partial(in_predict, partial(_write, make)), _PREDICT, says="image: 'x.jpg'")
        for name, make in refused().items()
    ]
    found += [
        Case(f"predict: {name}", partial(in_predict, partial(_write, make)), _PREDICT, why)
        for name, (make, why) in taken().items()
    ]
    return found + [
        Case(f"predict: {name}", partial(in_predict, write), _PREDICT, says="x.jpg") for name, write in PLACES.items()
    ]


def cases_of_training() -> list[Case]:
    """Every third file, and all that is no file, once as it is and once with the setting that skips broken images."""
    found = []
    writers = {name: partial(_write, make) for name, make in list(refused().items())[::3]} | PLACES
    for name, write in writers.items():
        says = "on_broken_image: train/cat/x.jpg cannot be decoded"
        found.append(Case(f"train: {name}", partial(in_training, write), TRAIN, says=says, leaves="run"))
        found.append(Case(f"skip: {name}", partial(in_training, write), (*TRAIN, *SKIP), "it is skipped, in a line"))
    for name, (make, why) in list(taken().items())[::3]:
        found.append(Case(f"train: {name}", partial(in_training, partial(_write, make)), TRAIN, why))
    found += [Case(f"folder {name}", make, TRAIN, says=says) for name, (make, says) in FOLDERS.items()]
    return found + [Case(f"folder {name}", make, TRAIN, why) for name, (make, why) in FOLDERS_TAKEN.items()]
