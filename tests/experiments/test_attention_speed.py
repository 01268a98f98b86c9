"""The table behind `auto`: every backend that can is timed, a row says what the times say, and words are checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from vit.attention.backends import Refused
from vit.cli import main
from vit.experiments import attention_speed
from vit.experiments.attention_speed import bench_attention, bench_models
from vit.experiments.turns import Seconds

MODEL = "vit_tiny_patch32_224"


@pytest.fixture(autouse=True)
def quick_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those that are compiled or interpreted; triton refuses, as where there is no CUDA."""
    attend = attention_speed.attend

    def run(*vectors: torch.Tensor, backend: str, **options: Any) -> torch.Tensor:
        if backend == "triton":
            raise Refused(backend, "there is no CUDA")
        return attend(*vectors, backend=backend, **options)

    monkeypatch.setattr(attention_speed, "BACKENDS", ("triton", "sdpa", "matmul"))
    monkeypatch.setattr(attention_speed, "attend", run)


def given(milliseconds: Mapping[str, float]) -> Any:
    """Every side runs once and gets the time that is `given`."""

    def time_in_turns(sides: Any, turns: int, *_: Any, **__: Any) -> dict[str, list[Seconds]]:
        for side in sides.values():
            side()
        return {name: [Seconds(milliseconds[name] / 1e3, 0.0)] * turns for name in sides}

    return time_in_turns


def test_a_row_names_the_fastest_of_the_backends_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"triton": 1.0, "sdpa": 5.0, "matmul": 2.0}
    monkeypatch.setattr(attention_speed, "time_in_turns", given(times))
    told: list[str] = []
    rows = bench_attention("cpu", ["fp32"], [5], [2], 1, told.append)
    assert [(row["mask"], row["training"]) for row in rows] == [
        (mask, training) for mask in ("none", "padding", "causal") for training in (False, True)
    ]
    assert told == [str(row) for row in rows]
    for row in rows:
        assert row["fastest"] == "matmul"
        assert row["ms"] == {"sdpa": 5.0, "matmul": 2.0}


def test_every_number_of_heads_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[int] = []
    attend = attention_speed.attend

    def run(*vectors: torch.Tensor, backend: str, **options: Any) -> torch.Tensor:
        heads.append(vectors[0].shape[1])
        return attend(*vectors, backend=backend, **options)

    monkeypatch.setattr(attention_speed, "attend", run)
    monkeypatch.setattr(attention_speed, "time_in_turns", given({"sdpa": 5.0, "matmul": 2.0}))
    rows = bench_attention("cpu", ["fp32"], [5], [1], 1, lambda _: None, heads=[2, 3])
    assert [row["heads"] for row in rows] == [2] * 6 + [3] * 6
    assert set(heads) == {2, 3}


def test_every_mask_has_its_own_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[str] = []

    def time_in_turns(sides: Any, *_: Any, draw: str, **__: Any) -> dict[str, list[Seconds]]:
        draws.append(draw)
        return {name: [Seconds(1.0, 1.0)] for name in sides}

    monkeypatch.setattr(attention_speed, "time_in_turns", time_in_turns)
    rows = bench_attention("cpu", ["fp32", "bf16"], [4, 5], [1, 2], 1, lambda _: None, heads=[2, 3])
    assert len(set(draws)) == len(rows) == 2**4 * 6


def test_a_ratio_above_one_says_that_auto_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_speed, "time_in_turns", given({"auto": 4.0, "sdpa": 6.0}))
    told: list[str] = []
    rows = bench_models("cpu", ["fp32", "bf16"], [MODEL], [1], 2, told.append)
    assert [(row["dtype"], row["training"]) for row in rows] == [
        (dtype, training) for dtype in ("fp32", "bf16") for training in (False, True)
    ]
    assert all((row["ratio"], row["ratios"]) == (1.5, [1.5, 1.5]) for row in rows)
    assert told == [str(row) for row in rows]


def test_times_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_speed, "_SHORTEST", 0.0)
    rows = bench_attention("cpu", ["fp32"], [5], [1], 1, lambda _: None)
    assert all(row["ms"][row["fastest"]] == min(row["ms"].values()) > 0 for row in rows)


@pytest.mark.parametrize("name", ["nonsense", "resnet18"])
def test_every_model_is_known_before_the_first_is_timed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_in_turns(*_: Any, **__: Any) -> None:
        raise AssertionError("it was timed")

    monkeypatch.setattr(attention_speed, "time_in_turns", time_in_turns)
    with pytest.raises(ValueError, match=f"^--models: '{name}' is not valid"):
        bench_models("cpu", ["fp32"], [MODEL, name], [1], 1, lambda _: None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--heads", "0"], "--heads: 0 is not valid"),
        (["--heads", "3", "--models"], "--heads: it has no effect with --models"),
    ],
)
def test_heads_that_decide_nothing_are_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "attention", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_command_passes_the_heads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_speed, "time_in_turns", given({"sdpa": 5.0, "matmul": 2.0}))
    output = tmp_path / "a.json"
    words = ["--heads", "2", "--tokens", "5", "--batch_sizes", "1", "--dtypes", "fp32", "--output", str(output)]
    assert main(["bench", "attention", *words]) == 0
    stored = json.loads(output.read_text())
    assert {row["heads"] for row in stored["rows"]} == {2}
    assert stored["turns"] > 0
    assert "torch" in stored["machine"]["versions"]


@pytest.mark.parametrize("words", [["attention"], ["attention", "--models"], ["analysis"], ["forward"]])
def test_a_device_that_is_not_there(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", *words, "--device", "cuda"]) == 2
    said = capsys.readouterr().err
    assert "--device: 'cuda' is not valid: it is not on this machine" in said
    assert said.count("\n") == 1
