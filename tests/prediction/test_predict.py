"""Many images predicted into one table: the classes are those that are printed, and nothing is computed twice."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.deployment.test_export import opened, small_vit
from vit import create_model
from vit.cli import main
from vit.data.decoding import read_rgb
from vit.hub import OpenedModel
from vit.models.inference import for_inference
from vit.prediction import Row, classify_images, draw_least_certain, predict_to_file, read_table, rows
from vit.prediction import predict as room

SUFFIXES = (".csv", ".jsonl", ".parquet")


@pytest.fixture(scope="module")
def model() -> OpenedModel:
    torch.manual_seed(0)
    return opened(small_vit())


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Nine images of several sizes; the third is broken, and the fifth is not there."""
    draw = np.random.default_rng(0)
    paths = [tmp_path / "images" / f"{number} ü,.png" for number in range(9)]
    paths[0].parent.mkdir()
    for number, path in enumerate(paths):
        Image.fromarray(draw.integers(0, 256, (20 + number, 30, 3), dtype=np.uint8)).save(path)
    paths[2].write_bytes(b"no image")
    paths[4].unlink()
    return paths


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_image_has_a_row_with_the_classes_that_are_printed(
    model: OpenedModel, images: list[Path], tmp_path: Path, suffix: str
) -> None:
    done = predict_to_file(model, images, tmp_path / f"out{suffix}", top_k=2, precision="fp32", batch_size=4)
    assert (done.num_images, done.num_broken, done.num_before) == (9, 2, 0)
    found = list(read_table(done.path))
    assert [row.file for row in found] == [str(path) for path in images]
    assert [bool(row.error) for row in found] == [number in (2, 4) for number in range(9)]
    assert found[2].error.startswith("it is not an image in one of the formats")
    assert "No such file" in found[4].error
    printed = dict(classify_images(model, [path for number, path in enumerate(images) if number not in (2, 4)], "cpu"))
    for row in found:
        expected = printed.get(Path(row.file), [])[:2]
        assert [name for name, _ in row.classes] == [name for name, _ in expected]
        assert [value for _, value in row.classes] == pytest.approx([value for _, value in expected], abs=2e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", f"out{suffix}"]


def test_two_processes_do_not_write_one_table(model: OpenedModel, images: list[Path], tmp_path: Path) -> None:
    with room._written_alone(tmp_path / "out.csv") as unfinished:
        unfinished.write_text("a row")
        with pytest.raises(ValueError, match=r"out\.csv' is being written by another process"):
            predict_to_file(model, images, tmp_path / "out.csv")
        assert unfinished.read_text() == "a row"
    assert not (tmp_path / "out.csv").exists()
    with room._written_alone(tmp_path / "other.csv"):
        pass
    assert not [path for path in tmp_path.iterdir() if "other" in path.name]


def test_a_failing_disk_makes_no_rows(
    model: OpenedModel, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = Image.open

    def fail(path: Path, **options: Any) -> Image.Image:
        if Path(path).name.startswith("5"):
            raise OSError(errno.EIO, "Input/output error")
        return opens(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", fail)
        with pytest.raises(OSError, match=r"5 ü,\.png could not be read .*; repair the disk"):
            predict_to_file(model, images, tmp_path / "out.csv", precision="fp32", batch_size=2)
    assert not (tmp_path / "out.csv").exists()
    done = predict_to_file(model, images, tmp_path / "out.csv", precision="fp32", batch_size=2)
    assert (done.num_before, done.num_broken) == (4, 2)


def test_the_files_are_what_other_programs_read(model: OpenedModel, images: list[Path], tmp_path: Path) -> None:
    paths = {suffix: tmp_path / f"out{suffix}" for suffix in SUFFIXES}
    for path in paths.values():
        predict_to_file(model, images, path, top_k=2, precision="fp32")
    with paths[".csv"].open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    assert list(cells[0]) == ["file", "class_1", "probability_1", "class_2", "probability_2", "error"]
    lines = [json.loads(line) for line in paths[".jsonl"].read_text(encoding="utf-8").splitlines()]
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = parquet.read_table(paths[".parquet"]).to_pydict()
    for number, (row, line) in enumerate(zip(cells, lines, strict=True)):
        assert row["file"] == line["file"] == columns["file"][number]
        assert (row["error"] or None) == line["error"] == columns["error"][number]
        names = [each["class"] for each in line["classes"]]
        assert [row["class_1"], row["class_2"]] == (names or ["", ""])
        assert names == [each["class"] for each in columns["classes"][number]]


def test_a_call_that_was_stopped_continues(
    model: OpenedModel, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"precision": "fp32", "batch_size": 2}
    whole = predict_to_file(model, images, tmp_path / "whole.csv", **options).path.read_bytes()
    output, asked = tmp_path / "out.csv", list[str]()

    def stop_in_the_third(*arguments: Any) -> Any:
        asked.append("batch")
        if len(asked) == 3:
            raise KeyboardInterrupt
        return rows.likeliest(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(room, "likeliest", stop_in_the_third)
        with pytest.raises(KeyboardInterrupt):
            predict_to_file(model, images, output, **options)
    assert not output.exists()
    unfinished = tmp_path / ".out.csv.unfinished"
    with unfinished.open("a") as file:  # as if the process had been killed in the middle of a line
        file.write('{"file": "half')
    done = predict_to_file(model, images, output, **options)
    assert done.num_before == 4
    assert "4 of them by an earlier call" in done.text()
    assert output.read_bytes() == whole
    assert not unfinished.exists()


def test_what_another_call_left_is_not_taken(
    model: OpenedModel, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    torch.manual_seed(1)
    changes: tuple[dict[str, Any], ...] = (
        {"top_k": 1},
        {"opened": replace(model, class_names=["x", "y", "z"])},
        {"opened": replace(model, model=small_vit())},
        {"opened": replace(model, stated_preprocessing=replace(model.preprocessing, crop_fraction=0.5))},
        {"precision": "bf16"},
    )
    for changed in changes:
        with monkeypatch.context() as patch:
            patch.setattr(room, "write_table", stop)
            with pytest.raises(KeyboardInterrupt):
                predict_to_file(model, images, tmp_path / "out.csv", top_k=2, precision="fp32")
        arguments: dict[str, Any] = {"opened": model, "images": images, "top_k": 2, "precision": "fp32"} | changed
        done = predict_to_file(**arguments, output=tmp_path / "out.csv")
        assert done.num_before == 0, changed
        assert done.num_images == len(arguments["images"])


@pytest.mark.parametrize("multilabel", [False, True])
def test_of_classes_with_the_same_logit_the_first_comes_first(model: OpenedModel, multilabel: bool) -> None:
    """Also of many, and where only the probabilities round to the same number."""
    names = [str(number) for number in range(200)]
    state = {"task": {"thresholds": [0.0] * 200}}
    several = replace(model, multilabel=multilabel, num_classes=200, class_names=names, state=state)
    logits = torch.zeros(2, 200)
    logits[1] = 90 + torch.arange(200) % 2 * 10  # the probability 1 of every class, if they are judged one by one
    equal, odd = rows.likeliest(several, logits, 3)
    assert [name for name, _ in equal] == ["0", "1", "2"]
    assert [name for name, _ in odd] == ["1", "3", "5"]


def test_a_multi_label_model_gives_the_labels_that_reach_their_threshold(
    model: OpenedModel, images: list[Path], tmp_path: Path
) -> None:
    several = replace(model, multilabel=True, state={"task": {"thresholds": [0.0, 0.2, 1.1]}})
    done = predict_to_file(several, images[:2], tmp_path / "out.jsonl", precision="fp32")
    for row in read_table(done.path):
        assert {"a"} <= {name for name, _ in row.classes} <= {"a", "b"}
        assert [value for _, value in row.classes] == sorted((value for _, value in row.classes), reverse=True)


def test_a_table_has_all_labels_that_reach_their_threshold(images: list[Path], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = create_model("vit", image_size=(16, 24), patch_size=8, width=24, depth=1, num_heads=3, num_classes=8)
    several = replace(opened(model), multilabel=True, num_classes=8, class_names=list("abcdefgh"))
    several = replace(several, state={"task": {"thresholds": [0.0] * 7 + [1.1]}})
    for suffix in (".csv", ".jsonl"):
        done = predict_to_file(several, images[:3], tmp_path / f"out{suffix}", precision="fp32")
        assert [len(row.classes) for row in read_table(done.path)] == [7, 7, 0]
    few = predict_to_file(several, images[:1], tmp_path / "few.csv", precision="fp32", top_k=2)
    assert [len(row.classes) for row in read_table(few.path)] == [2]


def test_rows_of_other_thresholds_are_not_taken(model: OpenedModel) -> None:
    first, second = (replace(model, multilabel=True, state={"task": {"thresholds": [at] * 3}}) for at in (0.5, 0.6))
    assert room._key(first, 3, "fp32") != room._key(second, 3, "fp32")


def test_logits_that_are_no_numbers_are_refused(images: list[Path], tmp_path: Path) -> None:
    broken = opened(small_vit())
    with torch.no_grad():
        broken.model.get_parameter("head.weight").fill_(torch.nan)
    said = f"its logits for {images[0]} are infinite or NaN"
    with pytest.raises(ValueError, match=re.escape(said)):
        classify_images(broken, images[:2], device="cpu")
    with pytest.raises(ValueError, match=re.escape(said)):
        predict_to_file(broken, images[:2], tmp_path / "out.csv", precision="fp32")


def test_a_name_with_a_carriage_return_is_read_back(model: OpenedModel, images: list[Path], tmp_path: Path) -> None:
    odd = images[0].rename(images[0].with_name("a\rb.png"))
    done = predict_to_file(model, [odd, images[1]], tmp_path / "out.csv", precision="fp32")
    assert [row.file for row in read_table(done.path)] == [str(odd), str(images[1])]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_another_library_is_computed_by_autocast_and_ours_by_a_copy(
    model: OpenedModel, images: list[Path], tmp_path: Path, precision: str
) -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = for_inference(model.model, packed=False)  # type: ignore[type-var]

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return self.inner(pixels)

    theirs = replace(model, model=Wrapped(), implementation="user")
    tables = [
        list(read_table(predict_to_file(each, images, tmp_path / f"{name}.jsonl", precision=precision).path))
        for name, each in (("ours", model), ("theirs", theirs))
    ]
    for ours, other in zip(*tables, strict=True):
        found = dict(other.classes)
        assert dict(ours.classes) == pytest.approx(found, abs=1e-5 if precision == "fp32" else 0.03)


def test_the_contact_sheet_shows_the_least_certain_first(
    tmp_path: Path, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [0.9, 0.5, 0.0, 0.7, 0.0]
    given = [
        Row(str(path), (("cat", value), ("dog", 0.1))) if value else Row(str(path), error="broken")
        for path, value in zip(images, values, strict=False)
    ]
    table = tmp_path / "out.jsonl"
    table.write_text("".join(row.line() for row in given))
    draw_least_certain(table, tmp_path / "sheet.png", count=2)
    numbers = json.loads((tmp_path / "sheet.json").read_text())
    assert [row["file"] for row in numbers["images"]] == [str(images[1]), str(images[3])]
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 100
    images[1].unlink()
    headings, drawn = list[str](), list[Any]()
    with monkeypatch.context() as patch:
        patch.setattr("vit.prediction.contact_sheet.plot_contact_sheet", lambda groups, _: headings.extend(groups))
        patch.setattr("vit.prediction.contact_sheet.save_figure", lambda *given: drawn.append(given[-1]))
        draw_least_certain(table, tmp_path / "sheet.png", count=2)
    assert headings[0].startswith("the 1 image with the least certain prediction")
    assert [row["file"] for row in drawn[0]["images"]] == [str(images[3])], "the other is gone"
    table.write_text(given[2].line())
    with pytest.raises(ValueError, match="it has no image with a class"):
        draw_least_certain(table, tmp_path / "none.png")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": "out.txt"}, r"--output: '.*out.txt' is not valid: its name must end in \.csv, \.jsonl, \.parquet"),
        ({"images": []}, "images: .* name at least one"),
        ({"top_k": 0}, "top_k: 0 is not valid"),
        ({"batch_size": 0}, "batch_size: 0 is not valid"),
    ],
)
def test_refusals(model: OpenedModel, images: list[Path], tmp_path: Path, options: dict[str, Any], said: str) -> None:
    arguments = {"images": images, "output": "out.csv"} | options
    arguments["output"] = tmp_path / arguments["output"]
    with pytest.raises(ValueError, match=said):
        predict_to_file(model, **arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("out.csv", "file,label\na.png,cat\n"),
        ("out.csv", "1.5\n2.5\n"),
        ("out.csv", "\0\n"),
        ("out.csv", "file,error\nb.png,truncated\n"),
        ("out.jsonl", '{"step": 3, "train.loss": 0.5}\n'),
        ("out.jsonl", "[1, 2]\n"),
        ("out.jsonl", '{"file": "a.png", "classes": [], "error": null, "reviewed": "by hand"}\n'),
        ("out.jsonl", '{"file": ' + "[" * 200_000),
        ("out.jsonl", "notes\n"),
        ("out.parquet", "notes\n"),
    ],
)
def test_a_file_of_something_else_is_not_replaced(
    name: str, content: str, model: OpenedModel, images: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(ValueError, match="it exists already and is not a table of predictions; name another file"):
        predict_to_file(model, images, file, precision="fp32")
    assert file.read_text() == content


def test_parquet_of_other_columns_and_a_pipe_are_not_replaced(
    model: OpenedModel, images: list[Path], tmp_path: Path
) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"file": pyarrow.array([], pyarrow.string())}), tmp_path / "out.parquet")
    os.mkfifo(tmp_path / "out.csv")
    for name in ("out.parquet", "out.csv"):
        with pytest.raises(ValueError, match="it exists already and is not a table of predictions"):
            predict_to_file(model, images, tmp_path / name, precision="fp32")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_an_earlier_table_and_an_empty_file_are_replaced(
    suffix: str, model: OpenedModel, images: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / f"out{suffix}"
    file.touch()
    for top_k in (3, 1):
        predict_to_file(model, images, file, precision="fp32", top_k=top_k)
        assert {len(row.classes) for row in read_table(file)} <= {top_k, 0}


def test_names_that_are_no_text_keep_their_bytes(model: OpenedModel, images: list[Path], tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(images[0].parent) + b"/\xff.png"))
    images[0].rename(odd)
    for suffix in (".csv", ".jsonl"):
        done = predict_to_file(model, [odd], tmp_path / f"out{suffix}", precision="fp32")
        (row,) = read_table(done.path)
        assert row.file == str(odd)
    draw_least_certain(done.path, tmp_path / "sheet.png")
    assert json.loads((tmp_path / "sheet.json").read_text())["images"][0]["file"] == str(odd)


@pytest.mark.usefixtures("images")
def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["predict", "vit_tiny_patch16_224", "images", "--random_weights", "--device", "cpu", "--top", "1"]
    table = ["--output", "out.csv", "--contact_sheet", "sheet.png", "--precision", "fp32", "--image_size", "32"]
    assert main([*words, *table]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("out.csv: 8 images, ")
    assert "; 1 could not be read (column error)" in said.out
    assert "the least certain images: sheet.png" in said.out
    assert "random weights" in said.err
    assert len(Path("out.csv").read_text().splitlines()) == 9
    for wrong in (["--contact_sheet", "a.png"], ["--workers", "1"], ["--output", "a.csv", "--format", "csv"]):
        assert main([*words, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("form", ["text", "csv"])
def test_classes_are_printed_image_by_image(
    form: str, images: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(path: Path, name: str) -> Image.Image:
        if path == images[3]:
            raise KeyboardInterrupt
        return read_rgb(path, name)

    monkeypatch.setattr("vit.prediction.classify.read_rgb", read)
    words = ["predict", "vit_tiny_patch16_224", "--random_weights", "--image_size", "32", "--device", "cpu"]
    assert main([*words, "--format", form, *map(str, images)]) == 130
    said = capsys.readouterr().out
    assert [str(path) in said for path in images[:4]] == [True, True, False, False]


@pytest.mark.parametrize("form", ["text", "csv", "json"])
def test_names_that_are_no_text_are_printed_as_they_are(
    form: str, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    images[0].rename(odd)
    printed, typed = io.BytesIO(), io.BytesIO(os.fsencode(odd) + b"\n")
    words = ["predict", "vit_tiny_patch16_224", "--random_weights", "--image_size", "32", "--device", "cpu", "-"]
    output = io.TextIOWrapper(printed, encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", output)
        patch.setattr("sys.stdin", io.TextIOWrapper(typed, encoding="utf-8"))
        assert main([*words, "--format", form]) == 0
        output.flush()
    if form == "json":
        assert json.loads(printed.getvalue())[0]["file"] == str(odd)
    else:
        assert b"caf\xe9.png" in printed.getvalue()


def test_a_sheet_of_broken_images_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.png").write_bytes(b"no picture")
    words = ["predict", "vit_tiny_patch16_224", "broken.png", "--random_weights", "--image_size", "32"]
    assert main([*words, "--output", "out.csv", "--contact_sheet", "sheet.png"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("vit: --contact_sheet: 'sheet.png' is not valid: there is nothing to draw: no image could")
    assert Path("out.csv").exists()
    assert not Path("sheet.png").exists()


def test_nothing_is_written_over_inputs_or_into_runs(
    images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.csv").write_text("file\n" + str(images[0]) + "\n")
    (tmp_path / "run" / "checkpoints" / "step-00000002").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").touch()
    (tmp_path / "notes.csv").write_text("mine\n")
    monkeypatch.setattr("vit.hub.open_model", None)  # all is refused before a model is opened
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    words = ["predict", "vit_tiny_patch16_224", "--random_weights", "images", "list.csv"]
    for wrong, said in (
        (["--output", "list.csv"], "--output: 'list.csv' is not valid: it is one of the inputs"),
        (["--output", "images/x.csv"], "--output: 'images/x.csv' is not valid: it lies among the images"),
        (["--output", "x.csv", "--contact_sheet", str(images[0])], "it is one of the inputs"),
        (["--output", "run/metrics.jsonl"], "it lies in a run's folder; name a file elsewhere"),
        (["--output", "notes.csv"], "--output: 'notes.csv' is not valid: it exists already and is not a table"),
        (["nowhere.png", "--output", "x.csv"], "image: there is no file or folder 'nowhere.png'"),
    ):
        assert main([*words, *wrong]) == 2
        assert said in capsys.readouterr().err
    for command in (
        ["convert", "vit_tiny_patch16_224", "--to", "hf", "--output", "run/checkpoints/step-00000001"],
        ["export", "vit_tiny_patch16_224", "--format", "onnx", "--output", "run/checkpoints/x.onnx"],
        ["push", "vit_tiny_patch16_224", "me/x", "--dry_run", "--folder", "run/checkpoints/step-00000001"],
        ["analyze", "vit_tiny_patch16_224", "--output_dir", "run/checkpoints"],
        ["compare", "vit_tiny_patch16_224", "vit_tiny_patch16_224", "--output_dir", "run/checkpoints/x"],
        ["eval", "vit_tiny_patch16_224", "--output_dir", "run/checkpoints/x"],
    ):
        assert main(command) == 2
        assert "it lies among the checkpoints of" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_rows_behind_a_damaged_one_are_predicted_again(
    model: OpenedModel, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(room, "write_table", stop)
        with pytest.raises(KeyboardInterrupt):
            predict_to_file(model, images, tmp_path / "out.jsonl", precision="fp32")
    unfinished = tmp_path / ".out.jsonl.unfinished"
    lines = unfinished.read_bytes().splitlines(keepends=True)
    unfinished.write_bytes(b"".join([*lines[:4], b"\0\0\0\n", *lines[5:]]))
    done = predict_to_file(model, images, tmp_path / "out.jsonl", precision="fp32")
    assert done.num_before == 3
    assert [row.file for row in read_table(done.path)] == [str(path) for path in images]


def test_rows_are_kept_up_to_the_first_image_that_is_another_now(
    model: OpenedModel, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    whole = predict_to_file(model, images, tmp_path / "whole.jsonl", precision="fp32")
    with monkeypatch.context() as patch:
        patch.setattr(room, "write_table", stop)
        with pytest.raises(KeyboardInterrupt):
            predict_to_file(model, images, tmp_path / "out.jsonl", precision="fp32")
    shutil.copy(images[0], tmp_path / "new")
    (tmp_path / "new").replace(images[2])
    done = predict_to_file(model, images, tmp_path / "out.jsonl", precision="fp32")
    assert done.num_before == 2
    before, now = list(read_table(whole.path)), list(read_table(done.path))
    assert now[:2] == before[:2]
    assert now[2].classes != before[2].classes
    assert [row.file for row in now] == [str(image) for image in images]
