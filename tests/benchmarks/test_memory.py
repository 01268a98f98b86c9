"""Peaks of whole commands: the meter, the inputs, and the bound that each command states."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import memory
from benchmarks.memory import LARGE, REPEATED, Large, measure_large, write_files, write_photograph, write_text
from benchmarks.whole_process import run_command
from results.records import RESULTS

linux = pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux's")


@linux
def test_a_command_reports_its_own_peak_and_not_that_of_the_program_that_measures(tmp_path: Path) -> None:
    ballast = bytearray(2**30)  # of which a child's `ru_maxrss` would know
    ballast[:: 2**12] = b"x" * (len(ballast) // 2**12)
    found = run_command(["--help"], tmp_path)
    assert (found.exit_code, found.said) == (0, "")
    assert 5 < found.peak < 200
    assert run_command(["trian"], tmp_path).exit_code == 2
    assert list(tmp_path.iterdir()) == []


@linux
def test_a_photograph_costs_as_much_as_is_stated(tmp_path: Path) -> None:
    command = ["predict", "vit_tiny_patch16_224", "photograph.jpg"]
    write_photograph(tmp_path, side=64)
    small = run_command(command, tmp_path).peak
    write_photograph(tmp_path, side=6000)
    assert 0.9 * 4 * 36e6 < (run_command(command, tmp_path).peak - small) * 2**20 < 1.3 * 4 * 36e6


def test_the_inputs_are_as_large_as_they_should_be(tmp_path: Path) -> None:
    write_photograph(tmp_path, side=40, orientation=6)
    with Image.open(tmp_path / "photograph.jpg") as image:
        assert (image.size, image.mode, image.getexif()[0x0112]) == ((40, 40), "RGB", 6)
    write_files(tmp_path, count=200)
    counts = [len(list((tmp_path / "many" / part).glob("class*/*.jpg"))) for part in ("train", "val")]
    assert counts == [180, 20]
    write_text(tmp_path, part="test", longest=5000)
    lengths = {
        file.name: max(map(len, gzip.decompress(file.read_bytes()).decode().splitlines()))
        for file in (tmp_path / "text").iterdir()
    }
    assert [name for name, longest in lengths.items() if longest == 5000] == [
        name for name in lengths if name.startswith("test")
    ]
    assert max(longest for name, longest in lengths.items() if not name.startswith("test")) < 200


def test_another_exit_code_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Large(title="wrong", command="trian", bound=1, prepare=lambda _: None, rule="nothing")
    monkeypatch.setitem(memory.LARGE, "wrong", wrong)
    with pytest.raises(RuntimeError, match="vit trian: exit code 2 instead of 0: vit: there is no command"):
        measure_large("wrong", tmp_path)


def test_the_record_is_of_these_commands_and_below_their_bounds() -> None:
    record = json.loads((RESULTS / "memory.json").read_text())
    assert {name: row["bound"] for name, row in record["large"].items()} == {
        name: large.bound for name, large in LARGE.items()
    }
    assert [row["command"] for row in record["large"].values()] == [f"vit {large.command}" for large in LARGE.values()]
    assert [name for name, row in record["large"].items() if not row["bound"] / 2 < row["peak"] < row["bound"]] == []
    assert list(record["repeated"]) == list(REPEATED)
    assert record["repeated"]["growing"]["peak_ratio"] < 1.1, "training keeps what is freed"


@linux
@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_command_stays_below_its_bound(name: str, tmp_path: Path) -> None:
    found = measure_large(name, tmp_path)
    assert LARGE[name].bound / 2 < found.peak < LARGE[name].bound
