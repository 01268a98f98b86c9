"""Cost of layers: each computes what its name says, exponents are fitted, the command writes its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import layer_cost
from benchmarks.__main__ import main
from benchmarks.layer_cost import COSTS, draw_layers, exponent, make_layers, measure_layers
from vit.attention.core import attention_weights
from vit.attention.masks import window


def reach(layer: layer_cost.Layer, n: int = 23, width: int = 4) -> list[int]:
    """The tokens of the input that the middle token of the output depends on."""
    tokens = torch.randn(1, n, width, generator=torch.Generator().manual_seed(0), requires_grad=True)
    layer(tokens)[0, n // 2].sum().backward()
    assert tokens.grad is not None
    return torch.nonzero(tokens.grad[0].abs().sum(dim=1)).flatten().tolist()


def test_every_layer_sees_what_its_kind_sees() -> None:
    torch.manual_seed(0)
    layers = make_layers(width=4, kernel=5, radius=3)
    assert reach(layers["self_attention"]) == list(range(23))
    assert reach(layers["recurrent"]) == list(range(12))
    assert reach(layers["convolution"]) == [9, 10, 11, 12, 13]
    assert reach(layers["restricted_attention"]) == [8, 9, 10, 11, 12, 13, 14]
    assert layers.keys() == COSTS.keys()


def test_attention_is_over_the_tokens_themselves() -> None:
    tokens = torch.randn(1, 7, 4)
    layers = make_layers(width=4, kernel=3, radius=2)
    heads = tokens[:, None]
    for name, mask in (("self_attention", None), ("restricted_attention", window(7, 2))):
        wanted = (attention_weights(heads, heads, mask=mask) @ heads)[:, 0]
        torch.testing.assert_close(layers[name](tokens), wanted)


def test_an_exponent_is_that_of_the_longest() -> None:
    lengths = (1, 2, 4, 8, 16, 32)
    assert exponent(lengths, [9.0, 9.0, *(3.0 * n**2 for n in lengths[2:])]) == pytest.approx(2)
    assert exponent(lengths, [float(n) for n in lengths]) == pytest.approx(1)


def test_the_fastest_turn_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    timings = iter([3.0, 5.0, 7.0, 9.0, *[10.0] * 4, 2.0, 6.0, 8.0, 1.0, *[11.0] * 4])
    monkeypatch.setattr(layer_cost, "_seconds", lambda *_: next(timings))
    result = measure_layers(2, lengths=(16, 32), width=4)
    assert list(result["seconds"].values()) == [[2.0, 10.0], [5.0, 10.0], [7.0, 10.0], [1.0, 10.0]]


def test_a_timing_is_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(layer_cost, "_elapsed", lambda *args: calls.append(args[2]) or 0.003 * args[2])
    assert layer_cost._seconds(lambda tokens: tokens, torch.zeros(1)) == pytest.approx(0.003)
    assert calls == [1, 2, 4]


def test_no_turns_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", "--turns", "0"]) == 2
    assert "--turns: 0 is not valid: it must be at least 1" in capsys.readouterr().err


def test_the_command_leaves_numbers_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layer_cost, "_SHORTEST_TIMING", 1e-4)
    whole = measure_layers
    monkeypatch.setattr(
        layer_cost, "measure_layers", lambda turns: whole(turns, lengths=(8, 16, 32, 64), width=4, radius=4)
    )
    output, figure = tmp_path / "a" / "layers.json", tmp_path / "b" / "layers.png"
    assert main(["layers", "--turns", "1", "--output", str(output), "--figure", str(figure)]) == 0
    result = json.loads(output.read_text())
    assert result == json.loads(capsys.readouterr().out) == json.loads(figure.with_suffix(".json").read_text())
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert result["costs"]["recurrent"] == {
        "operations": "O(n d²)",
        "sequential_steps": "O(n)",
        "longest_path": "O(n)",
        "exponent": 1,
    }
    assert all(len(seconds) == 4 and min(seconds) > 0 for seconds in result["seconds"].values())


@pytest.mark.timed
def test_measured_exponents_are_those_of_the_table(tmp_path: Path) -> None:
    """Row 15. A machine that does other things too is why they are not compared more closely."""
    result = measure_layers(5)
    draw_layers(result, tmp_path / "layers.png")
    for name, cost in COSTS.items():
        assert result["exponents"][name] == pytest.approx(cost.exponent, abs=0.3), result
