"""The table of odd folders in docs/your_images.md: every row is built and opened, and what is said is compared."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.image_folders import make_folder, picture, truncate
from vit.config import DataConfig
from vit.config.part_names import part_named
from vit.data.decoding import BrokenImage
from vit.data.file_source import FileSource
from vit.data.image_paths import find_image_paths
from vit.data.images import check_test, fingerprint, open_test, open_training
from vit.data.lists import read_list
from vit.data.splits import Split
from vit.data.unlabelled import open_unlabelled

PAGE = Path(__file__).parents[2] / "docs" / "your_images.md"


def said_of(root: Path, **settings: object) -> str:
    """How many images a folder gives to which part, its classes and its notes; or the line that refuses it."""
    config = DataConfig(name="imagefolder", root=str(root), **settings)  # type: ignore[arg-type]
    try:
        train, val = open_training(config)
        check_test(config)
        test = open_test(config)
    except ValueError as error:
        return str(error)
    parts = {"train": train, "validation": val, "test": test}
    numbers = ", ".join(f"{name} {len(split)}" for name, split in parts.items())
    assert isinstance(train.source, FileSource)
    broken = sum(_is_broken(split, index) for split in parts.values() for index in split.indices.tolist())
    return f"{numbers}; classes {', '.join(train.source.class_names)}; {broken} broken; {'; '.join(train.source.notes)}"


def _is_broken(split: Split, index: int) -> bool:
    try:
        image = split.source.read(index)
    except BrokenImage:
        return True
    assert image.mode == "RGB"
    return False


def plain(root: Path) -> Path:
    return make_folder(root, {"cat": 5, "dog": 5})


def parts(*folders: str, count: int = 4) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        for folder in folders:
            make_folder(root / folder, {"cat": count, "dog": count})
        return root

    return make


def flat(*folders: str, beside: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Folders of images without classes, beside others."""

    def make(root: Path) -> Path:
        beside(root)
        make_folder(root, dict.fromkeys(folders, 3))
        return root

    return make


def holding(name: str, content: bytes = b"x", inside: str = "cat") -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        plain(root)
        (root / inside / name).write_bytes(content)
        return root

    return make


def hidden(root: Path) -> Path:
    plain(root)
    make_folder(root, {".owl": 3})
    return root


def given(name: str, content: str) -> Callable[[Path], Path]:
    """A file that is given instead of a folder."""

    def make(root: Path) -> Path:
        plain(root)
        (root / name).write_text(content)
        return root / name

    return make


def mixed_suffixes(root: Path) -> Path:
    plain(root)
    for index, suffix in enumerate(("JPG", "jpeg", "webp", "BMP", "tiff")):
        picture((9, 7), index).save(root / "cat" / f"x.{suffix}")
    return root


def other_jpegs(root: Path) -> Path:
    plain(root)
    for name in ("a.jfif", "b.JPE"):
        picture((9, 7), 1).save(root / "cat" / name, "JPEG")
    return root


def odd_modes(root: Path) -> Path:
    plain(root)
    picture((9, 7), 1).convert("L").save(root / "cat" / "grey.png")
    picture((9, 7), 2).convert("P").save(root / "cat" / "palette.png")
    picture((9, 7), 3).convert("CMYK").save(root / "dog" / "cmyk.jpg")
    Image.fromarray(np.full((6, 8), 40_000, dtype=np.uint16)).save(root / "dog" / "deep.png")
    return root


def animated(root: Path) -> Path:
    plain(root)
    frames = [picture((8, 8), index) for index in range(3)]
    frames[0].save(root / "cat" / "move.gif", save_all=True, append_images=frames[1:])
    return root


def turned(root: Path) -> Path:
    plain(root)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture((12, 6), 3).save(root / "cat" / "turned.jpg", exif=exif)
    return root


def nested(root: Path) -> Path:
    plain(root)
    make_folder(root / "cat" / "2023", {"May": 2})
    return root


def linked(root: Path) -> Path:
    plain(root)
    (root / "cat" / "again").symlink_to(root / "cat", target_is_directory=True)
    return root


def broken(root: Path) -> Path:
    plain(root)
    truncate(root / "cat" / "000.png")
    return root


def beside_files(root: Path) -> Path:
    plain(root)
    for name in ("a.pdf", "b.txt", "c.txt", "d.json", "notes", ".DS_Store", "Thumbs.db"):
        (root / "cat" / name).write_text("x")
    return root


def no_classes(root: Path) -> Path:
    root.mkdir()
    picture((8, 8), 1).save(root / "a.jpg")
    return root


def zipped(root: Path) -> Path:
    """`photos.zip` with its folder at the top, as most archives have it."""
    make_folder(root / "photos", {"cat": 5, "dog": 5})
    return Path(shutil.make_archive(str(root / "photos"), "zip", root, "photos"))


def parquet_list(root: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    make_folder(root, {"cat": 5, "dog": 5})
    files = [f"{name}/{index:03d}.png" for name in ("cat", "dog") for index in range(5)]
    parquet.write_table(pyarrow.table({"file": files, "label": ["cat"] * 5 + ["dog"] * 5}), root / "a.parquet")
    return root / "a.parquet"


ROWS: dict[str, tuple[Callable[[Path], Path], str]] = {
    # the first cell of a row of the page: how the folder is made, what is said
    "`Train/CLASS/`, `Test/CLASS/`": (parts("Train", "Test"), r"train 6, validation 2, test 8; classes cat, dog; .* $"),
    "`train/`, `val/`, `test/`": (
        parts("train", "val", "test"),
        r"train 8, validation 8, test 8; classes cat, dog; .*val/ chooses the best checkpoint, and test/ is",
    ),
    "`train/`, `dev/`, or `train/`, `eval/`": (parts("train", "dev"), r"train 6, validation 2, test 8; classes cat"),
    "`train/CLASS/`, `test/*.jpg`": (
        flat("test", beside=parts("train")),
        r"test 2; classes cat, dog; .*not used: 'test/', beside 'train/'",
    ),
    "`train/`, `val/`, and `test/` without classes": (
        flat("test/images", beside=parts("train", "val")),
        r"train 6, validation 2, test 8; .*not used: 'test/', beside 'train/' and 'val/'",
    ),
    "`train/`, `test/`, `extra/`": (
        parts("train", "test", "extra"),
        r"test 8; classes cat, dog; .*not used: 'extra/', beside 'train/' and 'test/'",
    ),
    "`train/` and `Training/`": (parts("train", "Training"), r"holds 'Training' and 'train', each a train part by its"),
    "`CLASS/` beside `Test/CLASS/`": (
        lambda root: parts("Test")(plain(root)),
        r"no training images: there is no folder '.*train'; move the class folders 'cat' and 'dog' into it",
    ),
    "`CLASS/` beside `test/*.jpg`": (flat("test", beside=plain), r"test' is named as a part and holds images without"),
    "`bus/`, `car/`, `train/`, of images each": (
        lambda root: make_folder(root, {"bus": 5, "car": 5, "train": 5}),
        r"test 3; classes bus, car, train; .*has no test set",
    ),
    "`archive/CLASS/`": (
        lambda root: plain(root / "archive").parent,
        r"one class folder, 'archive', and two are needed; did you mean .*ve\?",
    ),
    "an empty class": (lambda root: make_folder(root, {"cat": 5, "dog": 5, "eel": 0}), r"eel' holds no images .* add"),
    "a class folder whose name is not UTF-8": (
        lambda root: make_folder(root, {"cat": 5, os.fsdecode(b"caf\xe9"): 5}),
        r"class folder 'caf\\udce9' is not valid UTF-8; rename it",
    ),
    "only one class": (
        lambda root: make_folder(root, {"cat": 5}),
        r"holds one class folder, 'cat', and two are needed; expected .*<class>",
    ),
    "a class of two images": (lambda root: make_folder(root, {"cat": 5, "dog": 2}), r"'dog' has 2 images; every class"),
    "images without a class": (no_classes, r"a\.jpg' is directly in my images/ and so has no class; move every image"),
    "folders inside a class": (nested, r"train 8, validation 2, test 2; classes cat, dog; "),
    "a link to the folder itself": (linked, r"are one folder, by a link, and its images would count twice"),
    "`.JPG`, `.jpeg`, `.webp`, `.BMP`, `.tiff`": (mixed_suffixes, r"train 10, validation 2, test 3; .* 0 broken"),
    "`.jfif`, `.jpe`": (other_jpegs, r"train 8, validation 2, test 2; .* 0 broken; (?!.*not read)"),
    "`.HEIC`": (holding("a.HEIC"), r"not read: 1 \.heic file; JPEG or PNG would be"),
    "a hidden folder of images (`.owl/`)": (hidden, r"not used, being hidden: '\.owl/'"),
    "`.pdf`, `.txt`, … beside the images": (
        beside_files,
        r"not read: 2 \.txt files, 1 file without a suffix, 1 \.json file, 1 \.pdf file; JPEG",
    ),
    "a broken file": (broken, r"train 6, validation 2, test 2; .* 1 broken"),
    "names with spaces, quotes, emoji": (
        lambda root: make_folder(root, {"black cat": 5, "🐶 $HOME & 'co'": 5}),
        r"test 2; classes black cat, 🐶 \$HOME & 'co'; 0 broken",
    ),
    "grey, palette, CMYK, 16 bits": (odd_modes, r"train 10, validation 2, test 2; .* 0 broken"),
    "animations": (animated, r"train 7, validation 2, test 2; .* 0 broken"),
    "photographs turned by EXIF": (turned, r"train 7, validation 2, test 2; .* 0 broken"),
    "a zip file in a class": (holding("more.zip"), r"not read: 1 \.zip file; JPEG or PNG would be"),
    "`photos.zip`, `photos.tar.gz` instead of a folder": (zipped, r"train 6, validation 2, test 2; .* 0 broken"),
    "`photos.7z`, `photos.rar`": (given("photos.7z", "7z"), r"from folders, \.zip and \.tar; unpack it first: 7z x"),
    "a list in Parquet": (parquet_list, r"train 6, validation 2, test 2; classes cat, dog; 0 broken"),
    "an Excel table": (given("a.xlsx", "PK"), r"a list is CSV here; write one: pandas\.read_excel\("),
    "a list separated by semicolons": (
        given("a.csv", "file;label\ncat/000.png;cat"),
        r"the columns file;label \(columns are divided by commas, in \.tsv by tabs, not by ';'\)",
    ),
}


@pytest.mark.parametrize(("make", "said"), ROWS.values(), ids=list(ROWS))
def test_every_row_of_the_page(make: Callable[[Path], Path], said: str, tmp_path: Path) -> None:
    found = said_of(make(tmp_path / "my images"))
    assert re.search(said, found), found
    assert "\n" not in found


def test_the_page_has_these_rows() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Odd folders")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:] == list(ROWS)


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (("Train", "Test"), "train 6, validation 2, test 8"),
        (("Training", "Testing"), "train 6, validation 2, test 8"),
        (("TRAIN", "VAL"), "train 6, validation 2, test 8"),
        (("train_set", "test_set"), "train 6, validation 2, test 8"),
        (("train", "Test"), "train 6, validation 2, test 8"),
        (("training", "eval"), "train 6, validation 2, test 8"),
        (("Training", "Validation", "Testing"), "train 8, validation 8, test 8"),
        (("train-set", "dev", "eval"), "train 8, validation 8, test 8"),
        (("Training",), "train 4, validation 2, test 2"),
    ],
)
def test_parts_by_other_names(names: tuple[str, ...], others: str, tmp_path: Path) -> None:
    found = said_of(parts(*names)(tmp_path / "photos"))
    assert found.startswith(f"{others}; classes cat, dog; 0 broken"), found


def test_names_of_parts() -> None:
    assert [part_named(name) for name in ("TRAIN", "Train Set", "trainset", "val_images", "dev", "Eval")] == [
        *(["train"] * 3),
        *(["validation"] * 2),
        "test",
    ]
    assert {part_named(name) for name in ("trains", "test tube", "value", "device", "training camp", "")} == {None}


def test_a_folder_of_images_called_train_beside_one_class_has_no_class(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos", {"Train": 3, "bus": 3})
    assert "directly in Train/ and so has no class" in said_of(root)


def test_two_test_folders_need_a_choice(tmp_path: Path) -> None:
    root = parts("train", "test", "eval")(tmp_path)
    assert "holds 'eval' and 'test', each a test part by its name; keep one, or name" in said_of(root)
    assert said_of(root, test_folder="eval").startswith("train 6, validation 2, test 8;")
    assert "not used: 'test/', beside 'train/' and 'eval/'" in said_of(root, test_folder="eval")


def test_a_chosen_test_folder_leaves_the_cut_for_validation(tmp_path: Path) -> None:
    root = parts("train", "val", "test", "hard")(tmp_path)
    for chosen, left in (("hard", "'test/' and 'val/'"), ("val", "'hard/' and 'test/'")):
        found = said_of(root, test_folder=chosen)
        assert found.startswith("train 6, validation 2, test 8;")
        assert f"not used: {left}" in found
    assert said_of(root, test_folder="test").startswith("train 8, validation 8, test 8;")


def test_validation_of_its_own(tmp_path: Path) -> None:
    """Part of the fingerprint, apart from `data.fraction`, of the same classes, and without a fraction to cut."""
    config = DataConfig(name="imagefolder", root=str(parts("train", "val", "test")(tmp_path)))
    _, val = open_training(config)
    assert {val.source.name(index).split("/")[0] for index in val.indices.tolist()} == {"val"}
    half = DataConfig(name="imagefolder", root=str(tmp_path), fraction=0.5, subset_seed=1)
    assert len(open_training(half)[0]) == 4
    assert fingerprint(open_training(half)[1]) == fingerprint(val)
    assert "data.val_fraction: 0.3 is not valid: it has no effect: " in said_of(tmp_path, val_fraction=0.3)
    (tmp_path / "val" / "dog").rename(tmp_path / "val" / "eel")
    assert "differ: only in train/: 'dog' (1); only in val/: 'eel' (1)" in said_of(tmp_path)


@pytest.mark.parametrize("part", ["val", "test"])
def test_a_class_folder_linked_from_the_training_images(part: str, tmp_path: Path) -> None:
    root = parts("train", "val", "test")(tmp_path)
    shutil.rmtree(root / part / "cat")
    (root / part / "cat").symlink_to(root / "train" / "cat")
    config = DataConfig(name="imagefolder", root=str(root))
    said = rf"data\.root: '.*/train/cat' and '.*/{part}/cat' are one folder, by a link, .*; remove the link"
    for opens in [open_training] if part == "val" else [check_test, open_test]:
        with pytest.raises(ValueError, match=said):
            opens(config)


def test_validation_images_in_a_list(tmp_path: Path) -> None:
    plain(tmp_path)
    paths = sorted(tmp_path.rglob("*.png"))
    words = ["Train", "train", "training", "dev", "Test"]
    rows = [f"{path.relative_to(tmp_path)},{path.parent.name},{words[i % 5]}" for i, path in enumerate(paths)]
    for header in ("file,label,split", "File, label ,Split"):
        (tmp_path / "list.csv").write_text("\n".join([header, *rows]))
        assert said_of(tmp_path / "list.csv").startswith("train 6, validation 2, test 2;")
    refused = "data.val_fraction: 0.3 is not valid: it has no effect: "
    assert refused in said_of(tmp_path / "list.csv", val_fraction=0.3)
    (tmp_path / "list.csv").write_text("\n".join(["file,label,split", *rows]).replace("Test", "train"))
    assert said_of(tmp_path / "list.csv").startswith("train 6, validation 2, test 2;")


def test_a_child_is_suggested_only_where_it_is_the_one_with_images(tmp_path: Path) -> None:
    make_folder(tmp_path / "emb" / "train", {"cat": 0, "dog": 0})
    assert "expected " in said_of(tmp_path)
    parts("train")(tmp_path / "photos")
    assert f"did you mean --data.root {tmp_path / 'photos'}?" in said_of(tmp_path)
    parts("Train")(tmp_path / "more")
    assert "expected " in said_of(tmp_path)


def test_an_archive_of_images_without_labels_is_named(tmp_path: Path) -> None:
    """Unpacked beside it, its images would be among those that a class folder with it in it holds."""
    archive = str(zipped(tmp_path))
    with pytest.raises(ValueError, match=r"--data: .*zip' is not valid: it is an archive; unpack it first"):
        open_unlabelled([archive])
    with pytest.raises(ValueError, match=r"image: .*zip' is an archive; unpack it first"):
        find_image_paths([archive])


def test_an_empty_test_folder_is_said_to_be_empty(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"cat": 5, "dog": 5})
    (tmp_path / "test").mkdir()
    with pytest.raises(ValueError, match=r"test' is not valid: it holds no class folders; .* or remove it"):
        open_training(DataConfig(name="imagefolder", root=str(tmp_path)))


def test_files_that_are_no_images_are_counted_where_there_are_no_others(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.HEIC").touch()
    said = r"holds no images; not read: 12 \.heic files; JPEG or PNG would be"
    with pytest.raises(ValueError, match=f"--data: .*{said}"):
        open_unlabelled([str(tmp_path)])
    with pytest.raises(ValueError, match=f"image: .*{said}"):
        find_image_paths([str(tmp_path)])


def test_an_image_named_twice_is_opened_once(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "images", {"": 3})
    first = str(min(folder.iterdir()))
    assert len(open_unlabelled([first, str(folder), first]).files) == 3


def test_two_spellings_of_a_number_have_one_order_in_every_process(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "images", {"": 4})
    names = sorted(path.name for path in folder.iterdir())
    rows = [f"{name},{label}" for name, label in zip(names, ("2", "01", "1", "001"), strict=True)]
    (folder / "list.csv").write_text("\n".join(["file,label", *rows]))
    source, _ = read_list(folder / "list.csv")
    assert source.class_names == ["001", "01", "1", "2"]
