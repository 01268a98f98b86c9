"""Lists of images that are not what they should be: CSV files to train on, and text files to predict."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.data.image_folders import make_folder
from tests.faults.malformed.image_places import TRAIN, in_predict, recipe
from tests.faults.malformed.trials import Case

ROWS = [f"train/{name}/{number:03d}.png,{name}" for name in ("cat", "dog") for number in range(5)]
WHOLE = "\n".join(["file,label", *ROWS, ""])
PREDICT = ("predict", "m.safetensors", "list.txt", "--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5")


def _rows(*rows: str, head: str = "file,label") -> bytes:
    return "\n".join([head, *ROWS, *rows, ""]).encode()


CSV: dict[str, bytes] = {
    "empty": b"",
    "of a header alone": b"file,label\n",
    "of line feeds": b"\n\n\n",
    "without a header": "\n".join(ROWS).encode(),
    "of noise": bytes(range(128, 256)) * 4,
    "of zeros": bytes(1000),
    "in UTF-16": WHOLE.encode("utf-16"),
    "in Latin-1": _rows().decode().replace("cat", "cät").encode("latin-1"),
    "of a picture": b"\x89PNG\r\n\x1a\n" + bytes(50),
    "of JSON": b'[{"file": "a.png", "label": "cat"}]',
    "with semicolons": WHOLE.replace(",", ";").encode(),
    "with tabs": WHOLE.replace(",", "\t").encode(),
    "with two columns of files": _rows(head="file,image,label"),
    "with two columns of one name": _rows(head="file,file,label"),
    "with two columns of labels": _rows(head="file,label,class"),
    "without labels": _rows(head="file,x"),
    "without files": _rows(head="x,label"),
    "with a file that is not there": _rows("train/cat/no.png,cat"),
    "with a folder": _rows("train/cat,cat"),
    "with a file outside that is not there": _rows("../../no.png,cat"),
    "with an absolute file that is not there": _rows("/no/such/file.png,cat"),
    "with an empty file": _rows(",cat"),
    "with an empty label": _rows("val/cat/000.png,"),
    "with a row of one field": _rows("val/cat/000.png"),
    "with a row of spaces": _rows("  ,  "),
    "with a file twice": _rows("train/cat/000.png,dog"),
    "with a file of another name twice": _rows("train/../train/cat/000.png,dog"),
    "with a quote that is never closed": _rows('"val/cat/000.png,cat'),
    "with a field of a million letters": _rows(f"{'a' * 10**6},cat"),
    "with a name of 300 letters": _rows(f"{'a' * 300}.png,cat"),
    "with a name with a zero byte": _rows("a\0b.png,cat"),
    "with a class of one image": _rows("val/cat/000.png,eel"),
    "of one class": "\n".join(["file,label", *ROWS[:5]]).encode(),
    "with a part that is none": _rows("val/cat/000.png,cat,tets", head="file,label,split"),
    "with a broken image": _rows("broken.jpg,cat"),
    "with a pipe": _rows("pipe.jpg,cat"),
}
CSV_TAKEN: dict[str, tuple[bytes, str]] = {
    "with a byte order mark": (b"\xef\xbb\xbf" + WHOLE.encode(), "Excel writes it so"),
    "with carriage returns": (WHOLE.replace("\n", "\r\n").encode(), "Windows writes it so"),
    "with quotes": (_rows('"val/cat/000.png","cat"'), "CSV allows them"),
    "with a column more": (_rows("val/cat/000.png,cat,7", head="file,label,x"), "nothing reads it"),
    "with fields more": (_rows("val/cat/000.png,cat,7,8"), "nothing reads them"),
    "with a label of markup": (_rows().replace(b",cat", b",<b>cat</b>"), "a name"),
}
TEXT: dict[str, bytes] = {
    "empty": b"",
    "of line feeds": b"\n\n",
    "of noise": bytes(range(128, 256)) * 4,
    "in UTF-16": "x.png\n".encode("utf-16"),
    "of files that are not there": b"no.png\n",
    "of a name of 300 letters": b"a" * 300 + b".png\n",
    "of a name with a zero byte": b"a\0b.png\n",
    "of a line of a million letters": b"a" * 10**6,
    "of itself": b"list.txt\n",
    "of a folder": b".\n",
}


ANNOTATIONS: dict[str, bytes] = {
    "empty": b"",
    "of noise": bytes(range(128, 256)),
    "without tabs": b"a.JPEG cat 0 0 1 1\n",
    "of an unknown class": b"a.JPEG\teel\t0\t0\t1\t1\n",
    "of files that are not there": b"a.JPEG\tcat\t0\t0\t1\t1\n",
}


def _train_on(content: bytes, folder: Path) -> None:
    photos = make_folder(folder / "photos" / "train", {"cat": 6, "dog": 6}).parent
    make_folder(photos / "val", {"cat": 1, "dog": 1})
    (photos / "broken.jpg").write_bytes(b"broken")
    os.mkfifo(photos / "pipe.jpg")
    (photos / "list.csv").write_bytes(content)
    (folder / "recipe.yaml").write_text(recipe())


def _listed(content: bytes, folder: Path) -> None:
    in_predict(lambda inner: (inner / "list.txt").write_bytes(content), folder)


def _annotated(content: bytes, folder: Path) -> None:
    _train_on(b"", folder)
    (folder / "photos" / "val" / "val_annotations.txt").write_bytes(content)


def _placed(place: Callable[[Path], object], folder: Path) -> None:
    _train_on(b"", folder)
    (folder / "photos" / "list.csv").unlink()
    place(folder / "photos" / "list.csv")


PLACES: dict[str, Callable[[Path], object]] = {
    "that is not there": lambda path: None,  # noqa: ARG005
    "that is a pipe": lambda path: os.mkfifo(path),
    "that is a folder": lambda path: path.mkdir(),
    "that is a link to itself": lambda path: path.symlink_to(path.name),
    "that is a link to endless zeros": lambda path: path.symlink_to("/dev/zero"),
}


def cases() -> list[Case]:
    train = (*TRAIN, "--data.root", "photos/list.csv")
    found = []
    for name, content in CSV.items():
        leaves = "run" if name in ("with a broken image", "with a pipe") else ""
        found.append(Case(f"list {name}", partial(_train_on, content), train, leaves=leaves))
    for name, (content, why) in CSV_TAKEN.items():
        found.append(Case(f"list {name}", partial(_train_on, content), train, why))
    found += [Case(f"list {name}", partial(_placed, place), train) for name, place in PLACES.items()]
    found += [Case(f"predict a list {name}", partial(_listed, content), PREDICT) for name, content in TEXT.items()]
    for name, content in ANNOTATIONS.items():
        # the test set is opened when the run is over
        found.append(Case(f"Tiny-ImageNet's table {name}", partial(_annotated, content), TRAIN, leaves="run"))
    return found
