"""Sweeps vary one quantity, exponents by hand, the command draws a figure, two processes train."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import growth
from benchmarks.__main__ import main
from benchmarks.growth import Point, exponent, measure_processes, measure_sweep, sweeps
from vit.evaluation.memory import peak_memory_of, weight_storages


def test_one_quantity_moves_at_a_time() -> None:
    middle = vars(Point())
    for name, points in sweeps(4096).items():
        assert all(
            {key: value for key, value in vars(point).items() if key != name}.items() <= middle.items()
            for point in points
        )
        assert len({getattr(point, name) for point in points}) == len(points) >= 6
    assert [point.tokens for point in sweeps(300)["tokens"]] == [64, 144, 256]


def test_an_exponent_is_that_of_the_largest() -> None:
    assert exponent([1, 2, 4, 8, 16], [9, 9, 16, 64, 256]) == 2
    assert exponent([1, 2], [1, 2]) is None


def test_a_sweep_measures_what_grows() -> None:
    points = [Point(tokens=64, batch=batch, depth=1) for batch in (1, 2, 4)]
    result = measure_sweep("batch", points, turns=2)
    assert result["values"] == [1, 2, 4]
    for kind in ("forward", "step"):
        memory = result[kind]["bytes"]
        assert memory[0] < memory[1] < memory[2]
        assert all(each["median"] > 0 for each in result[kind]["seconds"])
        assert len(result[kind]["share_of_peak"]) == 3
        assert result[kind]["product_gflop"] > 0
        one, two, four = result[kind]["gflop"]
        assert (two, four) == (pytest.approx(2 * one, rel=1e-5), pytest.approx(4 * one, rel=1e-5))
    assert result["step"]["gflop"][2] == pytest.approx(3 * result["forward"]["gflop"][2], rel=1e-5)
    assert result["step"]["bytes"][0] > result["forward"]["bytes"][0]


def test_the_memory_of_a_step_is_at_least_its_gradients() -> None:
    model = growth._model(Point(tokens=64, depth=1))
    step = growth._step(model, torch.rand(1, 3, 128, 128))
    step()
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    assert peak_memory_of(step, set(weight_storages(model))) > gradients


@pytest.mark.parametrize(
    ("exponents", "said"),
    [
        ({"seconds": 1.5, "bytes": 1.0}, "exponents of time 1.50, of memory 1.00"),
        ({"seconds": None, "bytes": None}, "too few sizes for an exponent"),
    ],
)
def test_a_sweep_is_summarised_in_words(exponents: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {kind: FOUND[kind] | {"exponents": exponents} for kind in ("forward", "step")}
    monkeypatch.setattr(growth, "measure_sweep", lambda *_: found)
    told: list[str] = []
    growth.measure_growth(1, 0, told.append)
    times = "100 (100–1000), 200 (100–1000), 400 (100–1000) ms"
    assert told[1] == f"  forward: {times}; of peak 25%, 50%, 75%; {said}"


def test_the_command_leaves_numbers_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "measure_sweep", lambda *_: FOUND)
    assert main(["growth", "--processes", "0", "--output", str(tmp_path / "deep")]) == 0
    assert (tmp_path / "deep" / "growth.png").read_bytes().startswith(b"\x89PNG")
    stored = json.loads((tmp_path / "deep" / "growth.json").read_text())
    assert stored["sweeps"]["depth"] == FOUND
    assert "processes" not in stored


FOUND: dict[str, Any] = {
    "values": [1, 2, 4],
    "middle": vars(Point()),
    **{
        kind: {
            "seconds": [{"median": 0.1 * value, "lower": 0.1, "upper": 1.0} for value in (1, 2, 4)],
            "share_of_peak": [0.25, 0.5, 0.75],
            "bytes": [1000, 2000, 4000],
            "exponents": {"seconds": 1.5, "bytes": 1.0},
        }
        for kind in ("forward", "step")
    },
}


@pytest.mark.parametrize(
    "words",
    [
        ["--turns", "0"],
        ["--processes", "1"],
        ["--processes", "3"],
        ["--largest_tokens", "63"],
        ["--largest_tokens", "5000"],
    ],
)
def test_what_measures_nothing_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["growth", *words]) == 2
    assert f"{words[0]}: {words[1]} is not valid" in capsys.readouterr().err


def test_processes_share_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> SimpleNamespace:
        words.extend(command)
        folder = Path(command[command.index("--output_dir") + 1])
        folder.mkdir()
        (folder / "summary.json").write_text('{"images_per_second": 5}')
        return SimpleNamespace(returncode=0)

    words: list[str] = []
    monkeypatch.setattr(subprocess, "run", run)
    assert growth._train(2) == 5.0
    size = words[words.index("--data.batch_size") + 1]
    assert f"batch {size} in all" in growth.CONVENTIONS["processes"]


def test_the_speed_of_processes_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "measure_sweep", lambda *_: FOUND)
    monkeypatch.setattr(growth, "_train", lambda processes: 10.0 * processes**0.5)
    told: list[str] = []
    growth.measure_growth(1, 4, told.append)
    assert told[:2] == ["1 and 4 processes", "  10, 20 images/s; ratio 2.000 (2.000–2.000)"]


@pytest.mark.slow
def test_two_processes_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_RUN", growth._RUN.replace("2048", "300").replace("width: 128", "width: 16"))
    result = measure_processes(2, turns=1)
    assert set(result["images_per_second"]) == {"1", "2"}
    assert result["ratio"]["median"] > 0
