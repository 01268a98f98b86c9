"""Speed of attention backends: which are timed, rows computed from times, and checks of arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import attention_speed
from benchmarks.__main__ import main
from benchmarks.attention_speed import WIDTH, bench_attention, bench_models, line
from benchmarks.timing import PEAK, Seconds
from vit.attention.backends import Refused
from vit.attention.core import attend

MODEL = "vit_tiny_patch32_224"


@pytest.fixture(autouse=True)
def quick_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without those that are compiled or interpreted; triton refuses, as where there is no CUDA. A small product."""

    def run(*vectors: torch.Tensor, backend: str, **options: Any) -> torch.Tensor:
        if backend == "triton":
            raise Refused(backend, "there is no CUDA")
        return attend(*vectors, backend=backend, **options)

    monkeypatch.setattr(attention_speed, "BACKENDS", ("triton", "sdpa", "matmul"))
    monkeypatch.setattr(attention_speed, "attend", run)
    monkeypatch.setattr(attention_speed, "matrix_product", lambda *_: (lambda: torch.ones(9, 9) @ torch.ones(9), 1.0))


def given(milliseconds: Mapping[str, float]) -> Any:
    """Every side runs once and gets the time that is `given`, the product's GFLOP 10 ms."""

    def time_interleaved(functions: Any, turns: int, *_: Any, **__: Any) -> dict[str, list[Seconds]]:
        for side in functions.values():
            side()
        given = {PEAK: 10.0, **milliseconds}
        return {name: [Seconds(given[name] / 1e3, 0.0)] * turns for name in functions}

    return time_interleaved


def test_a_row_names_the_fastest_of_the_backends_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"triton": 1.0, "sdpa": 5.0, "matmul": 2.0}
    monkeypatch.setattr(attention_speed, "time_interleaved", given(times))
    told: list[str] = []
    rows = bench_attention("cpu", ["fp32"], [5], [2], 1, told.append)
    assert [(row["mask"], row["training"]) for row in rows] == [
        (mask, training) for mask in ("none", "padding", "causal") for training in (False, True)
    ]
    assert told == [line(row) for row in rows]
    for row in rows:
        assert row["fastest"] == "matmul"
        assert row["ms"] == {"sdpa": always(5.0), "matmul": always(2.0)}
        assert row["ratios"] == {"sdpa": always(2.5)}


def always(value: float) -> dict[str, float]:
    """The spread of one number."""
    return {"median": value, "lower": value, "upper": value}


def test_ratios_are_taken_within_turns_and_have_quartiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns 1, 2 and 4 times as long: the times spread, the ratios do not."""

    def time_interleaved(functions: Any, *_: Any, **__: Any) -> dict[str, list[Seconds]]:
        return {name: [Seconds((2 if name == "sdpa" else 1) * slow, 0.0) for slow in (1, 2, 4)] for name in functions}

    monkeypatch.setattr(attention_speed, "time_interleaved", time_interleaved)
    for row in bench_attention("cpu", ["fp32"], [5], [2], 3, lambda _: None):
        assert row["ms"]["matmul"] == {"median": 2000.0, "lower": 1500.0, "upper": 3000.0}
        assert row["ratios"] == {"sdpa": always(2.0)}
        assert row["peak_gflops"] == {"median": 0.5, "lower": 0.4, "upper": 0.8}


@pytest.mark.parametrize(("training", "passes"), [(False, 1), (True, 3)])
def test_share_of_the_peak(training: bool, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two products of n × n × width a head, two operations each; a backward pass is two forward passes."""
    monkeypatch.setattr(attention_speed, "time_interleaved", given({"sdpa": 5.0, "matmul": 2.0}))
    rows = bench_attention("cpu", ["fp32"], [50], [2], 1, lambda _: None, heads=[3])
    gflop = 2 * 2 * 50 * 50 * WIDTH * (2 * 3) * passes / 1e9
    for row in rows:
        if row["training"] == training:
            assert row["gflop"] == round(gflop, 6)
            assert row["share_of_peak"] == {"sdpa": round(gflop / 0.5, 3), "matmul": round(gflop / 0.2, 3)}


def test_a_line_says_what_was_measured() -> None:
    row = {
        **{"batch_size": 8, "heads": 12, "dtype": "bf16", "tokens": 65, "mask": "causal", "training": True},
        **{"ms": {"sdpa": always(1234.5), "matmul": always(2.0)}, "fastest": "matmul", "compared": "matmul"},
        **{"ratios": {"sdpa": {"median": 2.5, "lower": 2.4, "upper": 2.6}}, "share_of_peak": {"matmul": 0.31}},
    }
    assert line(row) == (
        "bf16 8 × 12 heads, 65 tokens, causal mask, forward and backward: sdpa 1234 ms, matmul 2.00 ms; "
        "matmul 2.500 (2.400–2.600) times as fast as sdpa, 31% of peak"
    )


def test_every_number_of_heads_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[int] = []
    attend = vars(attention_speed)["attend"]  # which refuses triton here

    def run(*vectors: torch.Tensor, backend: str, **options: Any) -> torch.Tensor:
        heads.append(vectors[0].shape[1])
        return attend(*vectors, backend=backend, **options)

    monkeypatch.setattr(attention_speed, "attend", run)
    monkeypatch.setattr(attention_speed, "time_interleaved", given({"sdpa": 5.0, "matmul": 2.0}))
    rows = bench_attention("cpu", ["fp32"], [5], [1], 1, lambda _: None, heads=[2, 3])
    assert [row["heads"] for row in rows] == [2] * 6 + [3] * 6
    assert set(heads) == {2, 3}


@pytest.mark.parametrize("n", [1, 4, 5])
def test_every_second_sequence_has_all_its_keys(n: int) -> None:
    masks = attention_speed._masks(n, 3, "cpu")
    assert masks["padding"] is not None
    assert masks["padding"].sum(dim=-1).flatten().tolist() == [n // 2, n, n // 2]


def test_every_mask_has_its_own_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[str] = []

    def time_interleaved(functions: Any, *_: Any, seed: str, **__: Any) -> dict[str, list[Seconds]]:
        seeds.append(seed)
        return {name: [Seconds(1.0, 1.0)] for name in functions}

    monkeypatch.setattr(attention_speed, "time_interleaved", time_interleaved)
    rows = bench_attention("cpu", ["fp32", "bf16"], [4, 5], [1, 2], 1, lambda _: None, heads=[2, 3])
    assert len(set(seeds)) == len(rows) == 2**4 * 6


def test_a_ratio_above_one_says_that_auto_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_speed, "time_interleaved", given({"auto": 4.0, "sdpa": 6.0}))
    told: list[str] = []
    rows = bench_models("cpu", ["fp32", "bf16"], [MODEL], [1], 2, told.append)
    assert [(row["dtype"], row["training"]) for row in rows] == [
        (dtype, training) for dtype in ("fp32", "bf16") for training in (False, True)
    ]
    assert all(row["ratios"] == {"sdpa": always(1.5)} for row in rows)
    assert told == [line(row) for row in rows]
    assert told[0].startswith(
        f"{MODEL} fp32 batch 1, forward: sdpa 6.00 ms, auto 4.00 ms; auto 1.500 (1.500–1.500) times as fast as sdpa, "
    )


def test_short_names_are_those_of_the_other_benches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_speed, "time_interleaved", given({"auto": 6.0, "sdpa": 3.0}))
    monkeypatch.setattr(attention_speed, "_model_pass", lambda *_: lambda: None)
    rows = bench_models("cpu", ["fp32"], ["Ti", MODEL], [1], 1, lambda _: None)
    assert [row["model"] for row in rows] == ["vit_tiny_patch16_224"] * 2 + [MODEL] * 2


def test_auto_is_compared_with_sdpa_where_it_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_speed, "time_interleaved", given({"auto": 6.0, "sdpa": 3.0}))
    row = bench_models("cpu", ["fp32"], [MODEL], [1], 2, lambda _: None)[0]
    assert (row["fastest"], row["compared"], row["ratios"]) == ("sdpa", "auto", {"sdpa": always(0.5)})


def test_times_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_speed, "_SHORTEST", 0.0)
    for row in bench_attention("cpu", ["fp32"], [5], [1], 1, lambda _: None):
        medians = {name: found["median"] for name, found in row["ms"].items()}
        assert medians[row["fastest"]] == min(medians.values()) > 0
        assert row["peak_gflops"]["median"] > 0


def test_vectors_and_gradients_are_laid_out_as_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not contiguous by heads, and the gradient no expanded number: what copies cost belongs to a backend's time."""
    strides: list[tuple[int, ...]] = []
    attend = vars(attention_speed)["attend"]  # which refuses triton here

    def run(*vectors: torch.Tensor, **options: Any) -> torch.Tensor:
        answer = attend(*vectors, **options)
        strides.extend(vector.stride() for vector in vectors)
        if answer.requires_grad:
            answer.register_hook(lambda gradient: strides.append(gradient.stride()))
        return answer

    monkeypatch.setattr(attention_speed, "attend", run)
    monkeypatch.setattr(attention_speed, "time_interleaved", given({"sdpa": 5.0, "matmul": 2.0}))
    bench_attention("cpu", ["fp32"], [5], [2], 1, lambda _: None, heads=[3])
    in_block, gradient = (5 * 9 * WIDTH, WIDTH, 9 * WIDTH, 1), (5 * 3 * WIDTH, WIDTH, 3 * WIDTH, 1)
    assert set(strides) == {in_block, gradient}


@pytest.mark.parametrize("name", ["nonsense", "resnet18"])
def test_every_model_is_known_before_the_first_is_timed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def time_interleaved(*_: Any, **__: Any) -> None:
        raise AssertionError("it was timed")

    monkeypatch.setattr(attention_speed, "time_interleaved", time_interleaved)
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
    assert main(["attention", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_command_passes_the_heads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_speed, "time_interleaved", given({"sdpa": 5.0, "matmul": 2.0}))
    output = tmp_path / "a.json"
    words = ["--heads", "2", "--tokens", "5", "--batch_sizes", "1", "--dtypes", "fp32", "--output", str(output)]
    assert main(["attention", *words]) == 0
    stored = json.loads(output.read_text())
    assert {row["heads"] for row in stored["rows"]} == {2}
    assert stored["turns"] > 0
    assert "torch" in stored["machine"]["versions"]
    assert set(stored["rows"][0]) - set(stored["conventions"]) <= {
        "batch_size",
        "heads",
        "dtype",
        "tokens",
        "mask",
        "compared",
    }


@pytest.mark.parametrize("words", [["attention"], ["attention", "--models"], ["analysis"], ["forward"]])
def test_a_device_that_is_not_there(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([*words, "--device", "cuda"]) == 2
    said = capsys.readouterr().err
    assert "--device: 'cuda' is not valid: it is not on this machine" in said
    assert said.count("\n") == 1
