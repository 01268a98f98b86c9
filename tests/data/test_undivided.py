"""Folders and lists as people make them: what is trained on, what is split off, what is said or refused."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from tests.data.image_folders import make_folder, picture
from tests.training.tiny import tiny
from vit.cli import main
from vit.config import DataConfig
from vit.data import augmented
from vit.data.decoding import MissingImages
from vit.data.duplicates import LEAST_COSINE, near_duplicates
from vit.data.file_source import FileSource, notes_of
from vit.data.identity import count_copies, count_shared, file_identities
from vit.data.images import check_test, open_test, open_training
from vit.data.order import epoch_order
from vit.data.run_images import RunImage, changes
from vit.data.splits import Split
from vit.data.unlabelled import images_below
from vit.evaluation.seen_images import seen_by_run
from vit.settings import dump_run_config
from vit.training.loop import train


def config_for(root: Path, **settings: Any) -> DataConfig:
    return DataConfig(name="imagefolder", root=str(root), **settings)


def names(split: Split) -> set[str]:
    return {split.source.name(index) for index in split.indices.tolist()}


def notes(split: Split) -> str:
    assert isinstance(split.source, FileSource)
    return "; ".join(split.source.notes)


def test_the_test_part_is_balanced_fixed_and_apart(tmp_path: Path) -> None:
    make_folder(tmp_path, {"ant": 20, "bee": 10, "cat": 3})
    config = config_for(tmp_path)
    train, val = open_training(config)
    test = open_test(config)
    assert names(train) | names(val) | names(test) == {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")
    }
    assert len(train) + len(val) + len(test) == 33, "no image is in two parts"
    assert Counter(test.labels.tolist()) == {0: 4, 1: 2, 2: 1}
    assert set(train.labels.tolist()) == set(val.labels.tolist()) == {0, 1, 2}
    assert names(open_test(config)) == names(test)
    assert names(open_test(config_for(tmp_path, split_seed=1))) != names(test)
    larger = open_test(config_for(tmp_path, test_fraction=0.5))
    assert names(test) < names(larger)
    assert Counter(larger.labels.tolist()) == {0: 10, 1: 5, 2: 1}, "two images of a rare class stay"
    nearly_all = open_test(config_for(tmp_path, test_fraction=0.999))
    assert Counter(nearly_all.labels.tolist()) == {0: 18, 1: 8, 2: 1}, "of every class"
    assert len(open_test(config_for(tmp_path, test_fraction=1.0))) == 33
    assert notes(train) == notes(test)
    assert "7 of its 33 images are split off" in notes(train)


def plain(root: Path) -> Path:
    return make_folder(root, {"cat": 5, "dog": 5})


def train_alone(root: Path) -> Path:
    make_folder(root / "train", {"cat": 5, "dog": 5})
    return root


def odd_names(root: Path) -> Path:
    return make_folder(root, {"black cat": 5, "🐶 $HOME & 'co'": 5}, suffix="JPG")


def grey_and_cmyk(root: Path) -> Path:
    plain(root)
    for index, mode in enumerate(("L", "1", "P", "LA", "RGBA")):
        picture((9, 7), index).convert("L").convert(mode).save(root / "cat" / f"x{index}.png")
    picture((9, 7), 9).convert("CMYK").save(root / "dog" / "cmyk.jpg")
    return root


def deep_pixels(root: Path) -> Path:
    plain(root)
    Image.fromarray(np.full((6, 8), 40_000, dtype=np.uint16)).save(root / "cat" / "deep.png")
    return root


def animated(root: Path) -> Path:
    plain(root)
    frames = [picture((8, 8), index) for index in range(3)]
    frames[0].save(root / "cat" / "move.gif", save_all=True, append_images=frames[1:])
    frames[0].save(root / "dog" / "move.webp", save_all=True, append_images=frames[1:])
    return root


def turned(root: Path) -> Path:
    plain(root)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture((12, 6), 3).save(root / "cat" / "turned.jpg", exif=exif)
    return root


def unread(root: Path) -> Path:
    plain(root)
    for number in range(3):
        (root / "cat" / f"{number}.HEIC").write_bytes(b"x")
    (root / "dog" / "a.heic").write_bytes(b"x")
    (root / "dog" / "notes.txt").write_text("x")
    return root


def hidden(root: Path) -> Path:
    plain(root)
    (root / ".owl").mkdir()
    (root / ".cache").mkdir()
    (root / ".cache" / "notes.txt").write_text("x")
    picture((9, 7), 5).save(root / ".owl" / "a.png")
    return root


def nested(root: Path) -> Path:
    plain(root)
    (root / "cat" / "2023" / "May").mkdir(parents=True)
    picture((9, 7), 5).save(root / "cat" / "2023" / "May" / "a.png")
    return root


def archive_inside(root: Path) -> Path:
    plain(root)
    (root / "cat" / "more.zip").write_bytes(b"PK")
    (root / "dog" / "more.tar.gz").write_bytes(b"x")
    return root


def few(root: Path) -> Path:
    return make_folder(root, {"cat": 3, "dog": 3})


def with_runs(root: Path) -> Path:
    plain(root)
    (root / "runs" / "first").mkdir(parents=True)
    (root / "runs" / "first" / "config.yaml").write_text("")
    (root / "newest" / "checkpoints").mkdir(parents=True)  # a run under another name
    (root / "newest" / "config.yaml").write_text("")
    picture((9, 7), 5).save(root / "newest" / "curves.png")
    (root / "__MACOSX" / "cat").mkdir(parents=True)
    return root


def listed(root: Path) -> Path:
    plain(root)
    rows = [f"{path.relative_to(root)},{path.parent.name}" for path in sorted(root.rglob("*.png"))]
    (root / "labels.csv").write_text("\n".join(["file,label", *rows]))
    return root / "labels.csv"


def listed_with_parts(root: Path) -> Path:
    plain(root)
    paths = sorted(root.rglob("*.png"))
    rows = [
        f"{index % 5 // 4}{'test' if index % 5 == 0 else 'train'}\t{path.relative_to(root)}\t{10 if index < 5 else 9}"
        for index, path in enumerate(paths)
    ]
    rows = [row[1:] for row in rows]
    (root / "list.tsv").write_text("\n".join(["split\tfilename\tclass", *rows]))
    return root / "list.tsv"


def test_a_listed_class_without_a_training_image_is_named(tmp_path: Path) -> None:
    make_folder(tmp_path, {"cat": 6, "dog": 6})
    parts = {
        "cat": ["train", "train", "val", "test", "train", "test"],
        "dog": ["val", "val", "val", "test", "test", "val"],
    }
    rows = [f"{name}/{index:03d}.png,{name},{part}" for name, own in parts.items() for index, part in enumerate(own)]
    (tmp_path / "list.csv").write_text("\n".join(["file,label,split", *rows]))
    with pytest.raises(MissingImages, match="has no training image of the class 'dog'; add one"):
        open_training(config_for(tmp_path / "list.csv"))


def validation_folder(root: Path) -> Path:
    make_folder(root / "train", {"cat": 5, "dog": 5})
    make_folder(root / "validation", {"cat": 1, "dog": 1})
    return root


TAKEN: dict[str, tuple[Callable[[Path], Path], int, int, str]] = {
    # what the folder is like: how it is made, images to train and validate on, test images, what is said
    "class folders": (plain, 8, 2, "has no test set: 2 of its 10 images are split off"),
    "train without val": (train_alone, 8, 2, "has no test set: 2 of its 10 images"),
    "spaces, emoji, $ and quotes": (odd_names, 8, 2, "has no test set"),
    "grey, palette, transparent, CMYK": (grey_and_cmyk, 13, 3, "has no test set"),
    "16 bits": (deep_pixels, 9, 2, "has no test set"),
    "animations": (animated, 10, 2, "has no test set"),
    "turned photographs": (turned, 9, 2, "has no test set"),
    "unread endings": (unread, 8, 2, "not read: 4 .heic files, 1 .txt file; JPEG or PNG would be"),
    "a hidden folder of images": (hidden, 8, 2, "not used, being hidden: '.owl/'"),
    "images in folders inside a class": (nested, 9, 2, "has no test set: 2 of its 11 images"),
    "archives inside": (archive_inside, 8, 2, "not read: 1 .gz file, 1 .zip file; JPEG or PNG would be"),
    "three images a class": (few, 4, 2, "has no test set: 2 of its 6 images"),
    "runs and macOS's rest beside the classes": (with_runs, 8, 2, "has no test set"),
    "a CSV list": (listed, 8, 2, "labels.csv has no test set: 2 of its 10 images"),
    "a list with parts": (listed_with_parts, 8, 2, ""),
    "a validation folder": (validation_folder, 10, 2, ""),
}


def test_a_hidden_folder_that_cannot_be_read_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = hidden(tmp_path / "photos")
    (root / ".Trashes").mkdir()
    picture((9, 7), 5).save(root / ".Trashes" / "a.png")
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != ".Trashes" and may(path, mode))
    (note,) = (note for note in notes_of(open_training(config_for(root))[0].source) if "being hidden" in note)
    assert note == "not used, being hidden: '.owl/'"


@pytest.mark.parametrize("parts", [False, True])
def test_folders_of_a_disk_are_no_classes(parts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    for name in ("train", "val") if parts else ("",):
        make_folder(disk / name, {"cat": 6, "dog": 6})
    for name in ("lost+found", "System Volume Information", "$RECYCLE.BIN"):
        (disk / name).mkdir()
    is_file = Path.is_file

    def may_not_look(path: Path) -> bool:
        if path.parent.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", may_not_look)
    train, _ = open_training(config_for(disk))
    assert train.source.class_names == ["cat", "dog"]


@pytest.mark.parametrize(("make", "num_train", "num_test", "said"), TAKEN.values(), ids=list(TAKEN))
def test_odd_folders_that_are_taken(
    make: Callable[[Path], Path], num_train: int, num_test: int, said: str, tmp_path: Path
) -> None:
    config = config_for(make(tmp_path / "my images"))
    train, val = open_training(config)
    check_test(config)
    test = open_test(config)
    assert len(train) + len(val) == num_train
    assert len(test) == num_test
    assert not names(test) & (names(train) | names(val))
    assert len(train.source.class_names) == 2
    for split in (train, val, test):
        assert set(split.labels.tolist()) == {0, 1}
        images = [split.source.read(index) for index in split.indices.tolist()]
        assert {image.mode for image in images} == {"RGB"}
        assert max(np.asarray(image).std() for image in images) > 0
    assert said in notes(train)


def test_numbers_as_classes_are_in_their_order(tmp_path: Path) -> None:
    assert open_test(config_for(listed_with_parts(tmp_path))).source.class_names == ["9", "10"]


def test_a_turned_photograph_is_upright(tmp_path: Path) -> None:
    train, val = open_training(config_for(turned(tmp_path), test_fraction=0.01))
    images = {split.source.name(index): split for split in (train, val) for index in split.indices.tolist()}
    found = [name for name in images if name.endswith("turned.jpg")]
    source = train.source
    sizes = {source.name(index): source.read(index).size for index in range(len(source))}
    assert all(sizes[name] == (6, 12) for name in found)


def no_classes(root: Path) -> Path:
    make_folder(root, {"": 0})
    picture((8, 8), 1).save(root / "a.jpg")
    return root


def one_class(root: Path) -> Path:
    return make_folder(root, {"cat": 5})


def two_images(root: Path) -> Path:
    return make_folder(root, {"cat": 5, "dog": 2})


def phone_images(root: Path) -> Path:
    make_folder(root, {"cat": 5, "dog": 0})
    (root / "dog" / "a.HEIC").write_bytes(b"x")
    return root


def linked(root: Path) -> Path:
    plain(root)
    (root / "cat" / "again").symlink_to(root / "cat", target_is_directory=True)
    return root


def linked_whole(root: Path) -> Path:
    plain(root)
    (root / "zoo").symlink_to(root, target_is_directory=True)
    return root


def empty_class(root: Path) -> Path:
    return make_folder(root, {"cat": 5, "dog": 5, "eel": 0})


def archive(root: Path) -> Path:
    root.mkdir()
    (root / "photos.zip").write_bytes(b"PK")
    return root / "photos.zip"


def text(root: Path, name: str, content: str) -> Path:
    plain(root)
    (root / name).write_text(content)
    return root / name


def parquet(root: Path, columns: dict[str, Any]) -> Path:
    pyarrow, table = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    plain(root)
    table.write_table(pyarrow.table(columns), root / "a.parquet")
    return root / "a.parquet"


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "images without classes": (no_classes, r"a\.jpg' is directly in my images/ and so has no class"),
    "one class": (one_class, r"holds one class folder, 'cat', and two are needed; expected .*<class>"),
    "a class of two images": (two_images, "class 'dog' has 2 images; every class needs at least 3"),
    "a class of HEIC only": (phone_images, r"holds no images .*, but 1 \.heic file; add some"),
    "a link to the folder itself": (linked, r"cat' and .*cat/again' are one folder, by a link, and its images would"),
    "a link to the whole": (linked_whole, r"zoo.*' are one folder, by a link"),
    "an empty class": (empty_class, r"class folder .*eel' holds no images .*; add some, or remove it"),
    "a damaged Parquet list": (
        lambda root: text(root, "a.parquet", "PAR1"),
        r"a\.parquet' is not valid: it is not Parquet",
    ),
    "a Parquet table of images, not of files": (
        lambda root: parquet(root, {"image": [{"bytes": b"x"}], "label": ["cat"]}),
        r"a\.parquet' is not valid: its column 'image' holds struct<bytes: binary>, no names; a list names files",
    ),
    "a Feather list": (
        lambda root: text(root, "a.feather", "x"),
        r"a list is CSV here; write one: pandas\.read_feather\('.*a\.feather'\)\.to_csv\('list\.csv', index=False\)",
    ),
    "a damaged tar archive": (
        lambda root: text(root, "a.tar", "x"),
        r"a\.tar' cannot be unpacked: it is cut short, or",
    ),
    "a damaged zip archive": (archive, r"photos\.zip' cannot be unpacked: it is cut short, or"),
    "an archive of another kind": (lambda root: text(root, "a.7z", "x"), r"unpack it first: 7z x '.*a\.7z'"),
    "another file": (lambda root: text(root, "a.json", "{}"), r"or a list of files and labels that ends in \.csv"),
    "no label column": (
        lambda root: text(root, "a.csv", "file,x\na,b"),
        "first line must name one of label, class",
    ),
    "a missing file": (lambda root: text(root, "a.csv", "file,label\nno.jpg,b"), "row 2: there is no file"),
    "a label with a comma": (
        lambda root: text(root, "a.csv", "file,label\ncat/000.png,cat, striped\ndog/000.png,dog"),
        "row 2 has more cells than the header; a name or label that holds the separator must be in quotes",
    ),
    "two columns of parts": (
        lambda root: text(root, "a.csv", "file,label,Split, split\ncat/000.png,cat,test,\ndog/000.png,dog,train,"),
        "it has the columns Split,  split; keep one",
    ),
    "an empty label": (lambda root: text(root, "a.csv", "file,label\ncat/000.png,"), "row 2 has no label"),
    "a list of one class": (lambda root: text(root, "a.csv", "file,label\ncat/000.png,cat"), "it has one class, 'cat'"),
    "a file listed twice": (
        lambda root: text(root, "a.csv", "file,label\ncat/000.png,cat\ncat/000.png,dog"),
        "'cat/000.png' is there 2 times",
    ),
    "an unknown part": (
        lambda root: text(root, "a.csv", "file,label,split\ncat/000.png,cat,tets\ndog/000.png,dog,train"),
        "split is 'tets'; did you mean 'test'",
    ),
}


def test_a_separator_at_the_end_of_a_row_adds_no_cell(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images", {"cat": 4, "dog": 4})
    files = [f"{name}/{number:03}.png,{name}," for name in ("cat", "dog") for number in range(4)]
    (place := root / "a.csv").write_text("\n".join(["file,label", *files]))
    assert open_test(config_for(place)).source.class_names == ["cat", "dog"]


def test_a_test_folder_beside_a_list_would_have_no_effect(tmp_path: Path) -> None:
    config = config_for(listed(tmp_path), test_folder="elsewhere")
    for opens in (open_training, open_test):
        with pytest.raises(ValueError, match=r"data\.test_folder: 'elsewhere' .* in labels\.csv by a column 'split'"):
            opens(config)


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=list(REFUSED))
def test_odd_folders_that_are_refused(make: Callable[[Path], Path], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        open_training(config_for(make(tmp_path / "my images")))
    assert "\n" not in str(caught.value)


def test_a_fraction_without_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"test_fraction: 0\.3 is not valid: it has an effect only with data\.name"):
        DataConfig(name="digits", test_fraction=0.3)
    for make in (validation_folder, listed_with_parts):
        with pytest.raises(ValueError, match=r"data\.test_fraction: 0\.3 is not valid: it has no effect: "):
            open_training(config_for(make(tmp_path / make.__name__), test_fraction=0.3))
    with pytest.raises(ValueError, match="it leaves no images to train on"):
        open_training(config_for(plain(tmp_path / "plain"), test_fraction=1.0))


def test_copies_are_found_and_others_are_not(tmp_path: Path) -> None:
    make_folder(tmp_path, {"cat": 30, "dog": 30}, size=(64, 48))
    train, val = open_training(config_for(tmp_path))
    test = open_test(config_for(tmp_path))
    assert near_duplicates(train, test) == []
    copied, name = train.source.read(int(train.indices[0])), train.source.name(int(train.indices[0]))
    copied.resize((40, 30)).save(tmp_path / "copy.jpg", quality=70)
    Image.new("RGB", (9, 9), (3, 3, 3)).save(tmp_path / "even.png")
    source = FileSource(tmp_path, ["even.png", "copy.jpg"], torch.tensor([0, 0]), ["cat"])
    (found,) = near_duplicates(train, Split(source, torch.tensor([0, 1])))
    assert (found.test, found.train) == ("copy.jpg", name)
    assert found.cosine > LEAST_COSINE
    assert near_duplicates(Split(source, torch.tensor([0])), val) == []


def drawing(kind: str, fill: tuple[int, int, int], radius: int = 30) -> Image.Image:
    """One shape in the middle of a white ground."""
    image = Image.new("RGB", (96, 96), "white")
    corners = (48 - radius, 48 - radius, 48 + radius, 48 + radius)
    if kind == "disc":
        ImageDraw.Draw(image).ellipse(corners, fill=fill)
    else:
        ImageDraw.Draw(image).rounded_rectangle(corners, radius=radius // 2, fill=fill)
    return image


def test_unlike_drawings_are_no_copies(tmp_path: Path) -> None:
    """As near as copies by the cosine of their thumbnails; a true copy of one is found."""
    drawn = {
        "disc.png": drawing("disc", (0, 0, 0)),
        "larger.png": drawing("disc", (0, 0, 0), 31),
        "grey.png": drawing("disc", (150, 150, 150)),
        "square.png": drawing("square", (0, 0, 0), 28),
    }
    for name, image in drawn.items():
        image.save(tmp_path / name)
    drawn["disc.png"].resize((64, 64)).save(tmp_path / "copy.jpg", quality=80)
    train = FileSource(tmp_path, ["disc.png"], torch.tensor([0]), ["disc"])
    test = FileSource(tmp_path, ["larger.png", "grey.png", "square.png", "copy.jpg"], torch.zeros(4).long(), ["disc"])
    found = near_duplicates(Split(train, torch.tensor([0])), Split(test, torch.arange(4)))
    assert [each.test for each in found] == ["copy.jpg"]


def test_files_that_are_the_same_are_counted(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"cat": 4, "dog": 4})
    make_folder(tmp_path / "test", {"cat": 1, "dog": 1})
    for number in (1, 2):
        (tmp_path / "test" / "dog" / f"x{number}.png").write_bytes(
            (tmp_path / "train" / "cat" / f"00{number}.png").read_bytes()
        )
    (tmp_path / "test" / "dog" / "000.png").write_bytes(b"other")
    (tmp_path / "test" / "cat" / "000.png").write_bytes(bytes((tmp_path / "train/cat/000.png").stat().st_size))
    train, val = open_training(config_for(tmp_path))
    assert count_copies(open_test(config_for(tmp_path)), train, val) == 2
    fake = open_test(DataConfig(name="fake"))
    assert count_copies(fake, train) == count_copies(open_test(config_for(tmp_path)), fake) == 0


def test_images_that_differ_before_a_common_end_are_no_copies(tmp_path: Path) -> None:
    """As photographs without compression before one background, whose last 64 KiB are the same."""
    for part, top in {"train": 1, "test": 2, "test/copied": 1}.items():
        image = Image.new("RGB", (256, 256), "white")
        image.paste((top, top, top), (0, 0, 256, 16))  # a BMP begins with the last row
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        (tmp_path / part).mkdir(parents=True, exist_ok=True)
        image.save(tmp_path / part / "0.bmp")
    first, other, copied = (
        Split(FileSource(tmp_path / part, ["0.bmp"], torch.tensor([0]), [""]), torch.tensor([0]))
        for part in ("train", "test", "test/copied")
    )
    paths = [tmp_path / part / "0.bmp" for part in ("train", "test", "test/copied")]
    assert len(set(file_identities(paths, "images"))) == 1
    assert (count_shared(other, first), count_shared(copied, first)) == (0, 1)
    one, two, three = file_identities(paths, "images", whole=True)
    assert one == three != two


def test_test_images_that_the_pretrained_run_has_seen_are_said_in_the_header_and_on_the_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    first, second = plain(tmp_path / "first"), tmp_path / "second"
    shutil.copytree(first, second)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(dump_run_config(tiny(train={"epochs": 1}, data={"fake_images": 512, "fake_classes": 10}), {}))
    words = ["train", "--config", str(recipe), "--data", str(first), "--output_dir"]
    assert main([*words, str(tmp_path / "parent")]) == 0
    begun = ["--model.pretrained", str(tmp_path / "parent")]
    assert main([*words, str(tmp_path / "same"), *begun]) == 0
    assert "test images are" not in capsys.readouterr().out
    # another cut of the same images
    other = [*words[:3], "--data", str(second), "--data.split_seed", "5", "--output_dir"]
    assert main([*other, str(tmp_path / "child"), *begun]) == 0
    said = re.search(r"note \d +((\d+) of \d+ test images are training images of .*parent.*)", capsys.readouterr().out)
    assert said
    assert int(said[2]) > 0
    assert said[1] in (tmp_path / "child" / "README.md").read_text()
    # a file less: the parent's own list tells what it has seen; one without identities, of the files that are there
    gone = next(file for file in listed_images(tmp_path / "parent")["train"] if file.startswith("cat"))
    (first / gone).unlink()
    assert main([*words, str(tmp_path / "known"), *begun]) == 0
    assert "could not be compared" not in capsys.readouterr().out
    without_identities(tmp_path / "parent" / "images.csv")
    assert main([*words, str(tmp_path / "other"), *begun]) == 0
    line = f"1 image of {tmp_path / 'parent'} is gone and could not be compared."
    assert line in capsys.readouterr().out
    assert line in (tmp_path / "other" / "README.md").read_text()
    (tmp_path / "parent" / "images.csv").unlink()
    assert main([*words, str(tmp_path / "unknown"), *begun]) == 0
    line = "parent was trained on test images could not be checked: the images of imagefolder in"
    assert line in capsys.readouterr().out


def listed_images(run: Path) -> dict[str, set[str]]:
    """The files in a run's list, by part."""
    with (run / "images.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {part: {row["file"] for row in rows if row["split"] == part} for part in ("train", "validation")}


def without_identities(file: Path) -> None:
    """Make the list of a run one of an earlier version."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(row[:2] for row in rows)


def test_a_folder_reached_by_a_link_is_read_once(tmp_path: Path) -> None:
    make_folder(tmp_path, {"sub": 3, ".thumbnails": 2})
    (tmp_path / "again").symlink_to(tmp_path / "sub")
    (tmp_path / "sub" / "photo.heic").touch()
    images, said = images_below(tmp_path)
    assert sorted(path.name for path in images) == ["000.png", "001.png", "002.png"]
    assert said == ["not read: 1 .heic file; JPEG or PNG would be"]


def test_a_folder_of_the_disk_that_nobody_may_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path, {"sub": 3, "lost+found": 1})
    scan = os.scandir

    def fail(path: Any) -> Any:
        if Path(path).name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", fail)
    assert len(images_below(tmp_path)[0]) == 3


@pytest.mark.parametrize("identities", [True, False])
def test_what_a_run_has_seen_is_told_by_its_list_of_a_csv_list_too(tmp_path: Path, identities: bool) -> None:
    """A row of the list is gone, or its file; every image that is left was trained on or chose the weights."""
    photos = make_folder(tmp_path / "photos", {"cat": 8, "dog": 8})
    rows = [f"{path.relative_to(photos).as_posix()},{path.parent.name}" for path in sorted(photos.rglob("*.png"))]
    table, run = photos / "list.csv", tmp_path / "run"
    table.write_text("\n".join(["file,label", *rows]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        config = tiny(train={"epochs": 1}, data={"fake_images": 512, "fake_classes": 10})
        train(replace(config, data=replace(config.data, name="imagefolder", root=str(table))), run)
    if not identities:
        without_identities(run / "images.csv")
    parts = listed_images(run)
    seen = sorted(parts["train"] | parts["validation"])
    whole = config_for(photos, test_fraction=1.0)
    table.write_text("\n".join(["file,label", *(row for row in rows if not row.startswith(seen[0]))]) + "\n")
    for gone in (0, 1):
        test = open_test(whole)
        (found,) = seen_by_run(str(run), whole, test)
        assert (found.training, found.validation) == tuple(
            len(parts[part] & names(test)) for part in ("train", "validation")
        )
        assert found.gone == (0 if identities else gone)
        (photos / seen[1]).unlink(missing_ok=True)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_images_stay_in_their_parts_when_others_go(tmp_path: Path, fraction: float) -> None:
    """So a broken file that is removed moves no image of another class, and at most one of its own."""
    make_folder(tmp_path, {"ant": 40, "bee": 25, "cat": 30})

    def parts() -> list[set[str]]:
        config = config_for(tmp_path, fraction=fraction)
        return [*map(names, open_training(config)), names(open_test(config))]

    before = parts()
    removed = min(name for name in before[2] if name.startswith("bee"))
    (tmp_path / removed).unlink()
    (tmp_path / "cat" / "0000.png").write_bytes((tmp_path / "cat" / "000.png").read_bytes())
    for old, new in zip(before, parts(), strict=True):
        moved = (old ^ new) - {removed, "cat/0000.png"}
        assert not any(name.startswith("ant") for name in moved)
        assert all(sum(name.startswith(label) for name in moved) <= 1 for label in ("bee", "cat"))


def test_a_run_lists_its_images_and_names_those_that_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos, recipe, run = plain(tmp_path / "photos"), tmp_path / "recipe.yaml", tmp_path / "run"
    config = tiny(train={"epochs": 3}, data={"fake_images": 512, "fake_classes": 10})
    recipe.write_text(dump_run_config(config, {}))
    words = ["train", "--config", str(recipe), "--data", str(photos), "--output_dir", str(run)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.training.loop.finish_run", lambda _: (_ for _ in ()).throw(ValueError("stopped here")))
        assert main(words) == 2
    train, validation = open_training(config_for(photos))
    assert listed_images(run) == {"train": names(train), "validation": names(validation)}
    gone, new = sorted(names(train))[0], f"{min(names(train)).rpartition('/')[0]}/later.png"
    (photos / new).write_bytes((photos / gone).read_bytes())
    (photos / gone).unlink()
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{gone!r} is gone" in line
    kept = (photos / new).read_bytes()
    (photos / new).unlink()
    Image.new("RGB", (8, 8), "red").save(photos / gone)
    assert main(["train", "--resume", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{gone!r} is another image now, or damaged; put" in line
    (photos / gone).write_bytes(kept)
    shutil.copytree(photos / "cat", photos / "wolf")
    assert main(["train", "--resume", str(run)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in ("data.root: ", "wolf/", "new here"))
    assert "state.json" not in line
    shutil.rmtree(photos / "wolf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        patch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
        assert main(["train", "--resume", str(run)]) == 0


def test_how_the_images_of_a_run_have_changed_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "left.png").touch()
    before = {name: RunImage("train", "1") for name in ("left.png", "gone.png", "moved.png", "same.png", "other.png")}
    now = before | {"moved.png": RunImage("validation", "1"), "other.png": RunImage("train", "2")}
    now |= {"new.png": RunImage("train", "")}
    del now["left.png"], now["gone.png"]
    assert changes(before, now, tmp_path) == (
        "'gone.png' is gone, 'new.png' is new here, 'left.png' is no training image any more, "
        "'moved.png' is in the other part, 'other.png' is another image now, or damaged"
    )
    both = {name: replace(image, part="validation") for name, image in before.items()}
    assert changes(before, both, tmp_path) == "'gone.png', 'left.png', 'moved.png' and 2 more are in the other part"


def test_a_broken_image_may_be_repaired_before_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(augmented._MAX_VALUES, "cpu", 1)  # no image is read before its step
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    photos, recipe, run = (
        make_folder(tmp_path / "photos", {"cat": 20, "dog": 20}),
        tmp_path / "a.yaml",
        tmp_path / "run",
    )
    config = tiny(train={"epochs": 2, "save_every_steps": 1}, data={"fake_images": 512, "fake_classes": 10})
    recipe.write_text(dump_run_config(config, {}))
    train, _ = open_training(config_for(photos))
    order = epoch_order(config.seed, 0, len(train), 1, len(train))
    whole, broken = (photos / train.source.name(int(train.indices[order[place]])) for place in (0, -1))
    broken.write_bytes(b"no image")
    words = ["train", "--config", str(recipe), "--data", str(photos), "--output_dir", str(run)]
    assert main([*words, "--data.batch_size", "2", "--data.cache_gib", "0"]) == 2
    assert "cannot be decoded" in capsys.readouterr().err
    assert list((run / "checkpoints").iterdir()), "it was not the first image"
    broken.write_bytes(whole.read_bytes())
    assert main(["train", "--resume", str(run)]) == 0


def test_a_class_without_a_readable_image_ends_the_first_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, recipe, run = plain(tmp_path / "photos"), tmp_path / "recipe.yaml", tmp_path / "run"
    config = tiny(train={"epochs": 2}, data={"fake_images": 512, "fake_classes": 10, "on_broken_image": "skip"})
    recipe.write_text(dump_run_config(config, {}))
    for file in (photos / "cat").iterdir():
        file.write_bytes(b"no image")
    assert main(["train", "--config", str(recipe), "--data", str(photos), "--output_dir", str(run)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "data.root: class 'cat' has no readable training image; all 3 are broken: repair them, or remove" in line
    assert not (run / "checkpoints").exists()


def test_test_images_that_were_replaced_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a finished run is as it was, whatever became of its images and checkpoints."""
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    photos, recipe, run = plain(tmp_path / "photos"), tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(dump_run_config(tiny(train={"epochs": 2}, data={"fake_images": 512, "fake_classes": 10}), {}))
    words = ["train", "--config", str(recipe), "--data", str(photos), "--output_dir", str(run)]
    assert main(words) == 0
    (run / "analysis.html").touch()
    data = config_for(photos)
    (unchanged,) = seen_by_run(str(run), data, open_test(data))
    assert unchanged.warning() == ""
    Image.new("RGB", (8, 8), "red").save(photos / min(names(open_test(data))))
    (found,) = seen_by_run(str(run), data, open_test(data))
    assert found.warning() == f"1 of 2 test images are other images now than when {run} was tested."
    assert main(["eval", str(run), "--output_dir", str(tmp_path / "eval")]) == 0
    assert f"warning: {found.warning()}" in capsys.readouterr().err
    last = sorted((run / "checkpoints").iterdir())[-1]
    shutil.rmtree(last)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["train", "--resume", str(run)]) == 0
    assert "was finished already: test top-1" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_without_its_list_says_that_contents_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    photos, recipe, run = plain(tmp_path / "photos"), tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(dump_run_config(tiny(train={"epochs": 1}, data={"fake_images": 512, "fake_classes": 10}), {}))
    assert main(["train", "--config", str(recipe), "--data", str(photos), "--output_dir", str(run)]) == 0
    (run / "images.csv").unlink()
    assert main(["train", "--resume", str(run), "--epochs", "2"]) == 0
    assert "images.csv is missing: whether images have been replaced is not known" in capsys.readouterr().err
    with (run / "images.csv").open(encoding="utf-8", newline="") as file:
        identities = {row["identity"] for row in csv.DictReader(file) if row["split"] != "test"}
    assert identities == {""}, "nor does the new list say that they are those of the start"


def test_images_that_have_changed_places_are_still_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training image under the name of a test image, and the other way round."""
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    photos, run = plain(tmp_path / "photos"), tmp_path / "run"
    config = tiny(train={"epochs": 1}, data={"fake_images": 512, "fake_classes": 10})
    data = replace(config.data, name="imagefolder", root=str(photos))
    train(replace(config, data=data), run)
    (unchanged,) = seen_by_run(str(run), data, open_test(data))
    assert unchanged.warning() == ""
    trained, tested = (photos / min(names(split)) for split in (open_training(data)[0], open_test(data)))
    content = trained.read_bytes()
    trained.write_bytes(tested.read_bytes())
    tested.write_bytes(content)
    (found,) = seen_by_run(str(run), data, open_test(data))
    assert (found.training, found.validation) == (1, 0)
    tested.write_bytes(trained.read_bytes())
    trained.write_bytes(content)
    shutil.copy(trained, tested)
    (copied,) = seen_by_run(str(run), data, open_test(data))
    assert (copied.training, copied.copies) == (0, 1), "a copy in the data, which the header of every training tells"
    assert "test images are copies of training or validation images" in copied.warning()


@pytest.mark.parametrize("command", ["eval", "compare", "analyze", "eval a model"])
def test_no_output_goes_among_the_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    photos, run = plain(tmp_path / "photos"), tmp_path / "run"
    config = tiny(train={"epochs": 1}, data={"fake_images": 512, "fake_classes": 10})
    train(replace(config, data=replace(config.data, name="imagefolder", root=str(photos))), run)
    words = {
        "eval": ["eval", str(run)],
        "compare": ["compare", str(run), str(run)],
        "analyze": ["analyze", str(run), "--figures", "token_norms"],
        "eval a model": ["eval", "vit_tiny_patch16_224", "--data", str(photos), "--random_weights"],
    }[command]
    before = sorted(tmp_path.rglob("*"))
    for place in ("", "results", "cat/results"):
        assert main([*words, "--output_dir", str(photos / place)]) == 2
        assert "--output_dir" in (line := capsys.readouterr().err)
        assert "it lies among the images; name a place elsewhere" in line
    for written in (
        ["convert", str(run), "--to", "timm", "--output", str(photos / "cat" / "x.safetensors")],
        ["export", str(run), "--format", "torch", "--output", str(photos / "x.pt2")],
        ["push", str(run), "me/x", "--dry_run", "--folder", str(photos / "x")],
    ):
        assert main(written) == 2
        assert "it lies among the images; name a place elsewhere" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
    pictures = tmp_path / "pictures"
    shutil.copytree(photos / "cat", pictures)
    assert main(["analyze", str(run), "--data", str(pictures), "--output_dir", str(pictures / "x")]) == 2
    assert "it lies among the images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "run", "refused"),
    [
        (plain, ".", True),
        (plain, "runs/first", True),
        (plain, "cat", True),
        (plain, "../runs", False),
        (train_alone, "runs", False),
        (train_alone, "train/dog/run", True),
        (train_alone, "val", True),
        (listed, "images/run", False),
        (listed, ".", True),
    ],
)
def test_a_run_does_not_go_among_the_images(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], Path],
    run: str,
    refused: bool,
) -> None:
    monkeypatch.setattr("vit.training.loop.finish_run", lambda _: (_ for _ in ()).throw(ValueError("trained")))
    root, recipe = make(tmp_path / "photos"), tmp_path / "recipe.yaml"
    recipe.write_text(dump_run_config(tiny(train={"epochs": 1}, data={"fake_images": 512, "fake_classes": 10}), {}))
    before = sorted(tmp_path.rglob("*"))
    place = tmp_path / "photos" / run
    assert main(["train", "--config", str(recipe), "--data", str(root), "--output_dir", str(place)]) == 2
    said = capsys.readouterr().err
    assert ("it lies among the images; name a place elsewhere" in said) == refused
    assert (sorted(tmp_path.rglob("*")) == before) == refused
    assert ("trained" in said) != refused


@pytest.mark.filterwarnings("ignore")
def test_a_folder_of_ones_own_from_training_to_the_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same test images at the end of training and in `vit eval`; copies are counted."""
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
    monkeypatch.setattr("vit.tasks.classification.analysis.draw_inside", lambda *_: None)
    photos, recipe, run = tmp_path / "my $photos 🐶", tmp_path / "recipe.yaml", tmp_path / "my run"
    unread(photos)
    tested = open_test(config_for(photos))
    name = tested.source.name(int(tested.indices[0]))
    for number in range(20):  # nearly all copies are trained on
        Image.open(photos / name).save((photos / name).with_name(f"copy {number}.png"))
    recipe.write_text(dump_run_config(tiny(train={"epochs": 1}, data={"fake_images": 512, "fake_classes": 10}), {}))
    words = ["train", "--config", str(recipe), "--data", str(photos), "--output_dir", str(run)]
    assert main(words) == 0
    said = capsys.readouterr().out
    cut = f"{photos} has no test set: 6 of its 30 images are split off as one (data.test_fraction 0.2 of every class, "
    assert cut in said
    copied = re.search(r"note 3 +(\d+) of the 6 test images are training or validation images too, byte by byte", said)
    assert copied
    assert int(copied[1]) >= 3
    assert copied.start() < said.index("epoch 1 of 1")
    assert "not read: 4 .heic files" in said
    summary = json.loads((run / "summary.json").read_text())
    assert summary["test.n_total"] == 6
    assert summary["test.n_near_duplicates"] >= 3
    card = (run / "README.md").read_text()
    assert cut in card
    count = summary["test.n_near_duplicates"]
    told = f"{count} of the test images {'is' if count == 1 else 'are'} nearly the same as a training image"
    assert told in card
    assert told in said
    assert len((run / "predictions" / "near_duplicates.tsv").read_text().splitlines()) > 3
    assert main(["eval", str(run)]) == 0
    assert json.loads(capsys.readouterr().out)["top1"] == summary["test.top1"]


def test_identities_do_not_wait_for_a_pipe(tmp_path: Path) -> None:
    """Opening a named pipe without a writer would never end."""
    (tmp_path / "a.png").write_bytes(b"an image")
    os.mkfifo(tmp_path / "b.png")
    first, second = file_identities([tmp_path / "a.png", tmp_path / "b.png"], "images")
    assert len(first) == 32
    assert not second
