"""Every notebook, executed anew, prints the numbers that it is stored with.

A cell's words must be equal, and each number within one unit of its last printed digit, or `ROUNDING` where that is
more: another processor adds in another order. Cells tagged `trained` print what follows from training, which amplifies
such differences: there only as many numbers must be printed, each within `TRAINED`. Lines that begin with `time:` are
not compared.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from PIL import Image

from notebooks.execute import FOLDER, LARGEST, METADATA, code_cells, execute, text_of

NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))
SECONDS = 90
"""Processor time of one thread: twice what they take on a quiet machine."""
ROUNDING = 1e-3
"""Of a number's magnitude; float32 sums of a few thousand terms differ by less."""
NOISE = 1e-6
"""Differences that should be 0 print as rounding errors of this size at most."""
TRAINED = 5.0, 0.15
"""Percentage points, images or pixels of a number from 1 on, and of a smaller one."""
NEEDS = {
    "05_pretrained_vit_against_resnet.ipynb": {
        "VIT_DINOV2": "a Hugging Face folder with DINOv2's ViT-S/14",
        "VIT_RESNET": "the file resnet20-12fca82f.th",
        "VIT_CIFAR10": "a folder with CIFAR-10 as image files",
    }
}
"""Variables without which a notebook's stored outputs cannot be had anew, and what they name."""
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def stored(name: str) -> NotebookNode:
    return nbformat.read(FOLDER / name, as_version=4)


def compared_text(cell: NotebookNode) -> str:
    """What the cell said, without its lines of seconds."""
    lines = "\n".join(text_of(output) for output in cell.outputs).splitlines()
    return "\n".join(line for line in lines if not line.startswith("time:"))


def num_pictures(notebook: NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for cell in code_cells(notebook) for output in cell.outputs)


def differences(before: NotebookNode, after: NotebookNode) -> Iterator[str]:
    """A line for each thing that a cell says or draws otherwise than before, beyond its tolerance."""
    trained = "trained" in before.metadata.get("tags", [])
    texts = compared_text(before), compared_text(after)
    words = [[_NUMBER.sub("#", line).split() for line in text.splitlines()] for text in texts]
    numbers = [_NUMBER.findall(text) for text in texts]
    if len(numbers[0]) != len(numbers[1]) or (words[0] != words[1] and not trained):
        yield f"{before.id}: {texts[0]!r} became {texts[1]!r}"
        return
    for old, new in zip(*numbers, strict=True):
        if abs(value(old) - value(new)) > tolerance(old, trained=trained):
            yield f"{before.id}: {old} became {new} in {texts[1]!r}"
    counts = [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in (before, after)]
    if counts[0] != counts[1]:
        yield f"{before.id}: {counts[0]} pictures became {counts[1]}"


def value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def tolerance(number: str, *, trained: bool) -> float:
    mantissa, _, exponent = number.partition("e")
    last_digit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    allowed = max(1.001 * last_digit, ROUNDING * abs(value(number)), NOISE)
    return max(allowed, TRAINED[abs(value(number)) < 1]) if trained else allowed


def cell(text: str, *tags: str) -> NotebookNode:
    output = nbformat.v4.new_output("stream", text=text)
    return nbformat.v4.new_code_cell(id="here", metadata={"tags": list(tags)}, outputs=[output])


@pytest.mark.parametrize(
    ("before", "after", "tags", "is_equal"),
    [
        ("error 0.573", "error 0.574", (), True),
        ("error 0.573", "error 0.576", (), False),
        ("6,000 keys", "6,005 keys", (), True),
        ("6,000 keys", "6,007 keys", (), False),
        ("largest difference 8.9e-08", "largest difference 3.0e-07", (), True),
        ("largest difference 8.9e-08", "largest difference 3.0e-05", (), False),
        ("difference −2.8", "difference +2.8", (), False),
        ("right 91.11%", "wrong 91.11%", (), False),
        ("right 91.11%", "right 91.11% or 92.00%", (), False),
        ("right 91.11%", "right 95.00%", (), False),
        ("right 91.11%", "right 95.00%", ("trained",), True),
        ("right 91.11%", "right 85.00%", ("trained",), False),
        ("p = 0.20", "p = 0.40", ("trained",), False),
        ("digit_3 9%", "digit_7 8%", ("trained",), True),
        ("9%", "9% 8%", ("trained",), False),
        ("a\ntime: 3.0 s", "a\ntime: 9.0 s", (), True),
    ],
)
def test_the_comparison_sees_what_is_beyond_its_tolerance(
    before: str, after: str, tags: tuple[str, ...], is_equal: bool
) -> None:
    assert (list(differences(cell(before, *tags), cell(after))) == []) is is_equal


@pytest.mark.parametrize("name", NAMES)
def test_stored_with_outputs_that_are_small_and_say_nothing_of_the_machine(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    notebook = stored(name)
    assert len(text.encode()) <= LARGEST
    assert notebook.metadata == METADATA
    assert [each.execution_count for each in code_cells(notebook)] == list(
        range(1, 1 + len(list(code_cells(notebook))))
    )
    assert num_pictures(notebook) > 0
    outputs = [output for each in code_cells(notebook) for output in each.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert {output.name for output in outputs if output.output_type == "stream"} <= {"stdout"}
    assert not [key for each in notebook.cells for key in each.metadata if key != "tags"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_executed_anew_it_prints_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = NEEDS.get(name, {})
    for variable, what in needed.items():
        if not os.environ.get(variable):
            pytest.skip(f"set {variable} to {what}")
    for variable in [each for each in os.environ if each.startswith("VIT_") and each not in needed]:
        monkeypatch.delenv(variable)
    new = execute(FOLDER / name)
    old = stored(name)
    pairs = zip(code_cells(old), code_cells(new), strict=True)
    assert [line for first, second in pairs for line in differences(first, second)] == []


@pytest.mark.timed
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEEDS])
def test_nobody_waits_long_for_one(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    execute(FOLDER / name)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < SECONDS


@pytest.mark.slow
def test_without_a_network_and_a_folder_the_fifth_says_in_one_line_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VIT_DINOV2", raising=False)
    line = r"set VIT_DINOV2 to a folder or file with the weights of hf:facebook/dinov2-small: .*could not be fetched"
    with pytest.raises(CellExecutionError, match=line):
        execute(
            FOLDER / "05_pretrained_vit_against_resnet.ipynb",
            {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")},
        )


# ------------------------------------------------------------------ the numbers are those of elsewhere


def said(name: str) -> str:
    return "\n".join(compared_text(each) for each in code_cells(stored(name)))


def test_attention_from_the_ground_up_says_the_numbers_of_the_systems_page() -> None:
    text = said("01_attention_from_the_ground_up.ipynb")
    for expected in (
        "[0.8275, 0.1725, 0.0000, 0.0000]",
        "[0.2377, 0.0392, 0.7232, 0.0000]",
        "tensor([0.8808, 0.1192])",
        "[0.2912, 0.0106, 0.0982, 0.0625, 0.4917, 0.0458]",
        "has 28 numbers",
        "output: tensor([0.0000, 0.0000, 0.0000, ",
        "with two 0.00",
    ):
        assert expected in text


def test_vit_against_resnet_counts_every_test_image() -> None:
    text = said("03_vit_against_resnet.ipynb")
    counts = re.findall(r"(?:both right|both wrong|only the ViT right|only the ResNet right) (\d+)", text)
    assert len(counts) == 4
    assert sum(map(int, counts)) == 359


def test_looking_inside_a_vit_says_what_is_known_without_a_model() -> None:
    text = said("04_looking_inside_a_vit.ipynb")
    assert "uniform attention: 4.016 pixels" in text
    assert "rows 0.500 + columns 0.500 = 1.000" in text


# ------------------------------------------------------------------ a user's own images


@pytest.mark.slow
def test_train_on_your_images_takes_yours(tmp_path: Path) -> None:
    """Two classes, bright and dark, of 32×32 noise."""
    generator = np.random.default_rng(0)
    for part, (label, level) in [(part, each) for part in ("train", "val") for each in (("bright", 200), ("dark", 20))]:
        folder = tmp_path / "images" / part / label
        folder.mkdir(parents=True)
        for index in range(12):
            pixels = level + generator.integers(0, 40, (32, 32, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
    run = tmp_path / "run"
    variables = {"VIT_IMAGES": str(tmp_path / "images"), "VIT_EPOCHS": "2", "VIT_RUN": str(run)}
    assert num_pictures(execute(FOLDER / "02_train_on_your_images.ipynb", variables)) == 4
    summary = json.loads((run / "summary.json").read_text())
    assert summary["test.n_seen"] == 24
    assert summary["dataset"] == "imagefolder"
