"""The comparison of eight bits with other sides: one model on all of them, ratios within a turn, refused arguments."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import eight_bits
from benchmarks.__main__ import main
from benchmarks.eight_bits import OURS, OURS_FLOAT, bench_eight_bits, markdown
from benchmarks.eight_bits import _Ahead as AHEAD
from benchmarks.model_speed import MODELS
from vit.hub import create_model
from vit.layers.quantized import quantizes_here
from vit.models.inference import for_inference
from vit.models.vision_transformer import VisionTransformer

pytestmark = pytest.mark.skipif(not quantizes_here(), reason="no x86 processor, or a torch without oneDNN")
TINY: dict[str, Any] = {"name": "vit", "image_size": 8, "patch_size": 4, "width": 24, "depth": 2, "num_heads": 3}

compiled: list[torch.nn.Module] = []


class Ahead:
    """In place of the compiler, which takes a minute."""

    def __init__(self, model: VisionTransformer, progress: Any) -> None:
        self.programs: dict[str, Any] = {
            "vit fp32 ahead": for_inference(model),
            "timm fp32 ahead": for_inference(model),
        }
        self.programs[OURS] = for_inference(model, "int8")
        self.seconds = dict.fromkeys(self.programs, 1.5)
        progress("ahead")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "Ti", (TINY | {"num_classes": 5}, (2,)))
    monkeypatch.setattr(eight_bits, "SHORTEST", 0.0)
    compiled.clear()
    monkeypatch.setattr(eight_bits, "_Ahead", Ahead)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model: compiled.append(model))  # takes a minute
    # torchao compiles for a minute
    monkeypatch.setattr(eight_bits, "find_spec", lambda name: None if name == "torchao" else find_spec(name))


def test_all_sides_are_one_model() -> None:
    said: list[str] = []
    result = bench_eight_bits(["Ti"], [2], turns=2, progress=said.append)
    (row,) = result["rows"]
    ours = {f"vit {number}{way}" for number in ("int8", "fp32") for way in ("", " compiled", " ahead")}
    sides = {*ours, "onnxruntime fp32", "onnxruntime int8", "timm fp32", "timm fp32 ahead"}
    assert sides <= set(row["images_per_second"]) <= {*sides, "vit bf16", "vit bf16 compiled"}
    assert max(row["change"][name] for name in sides if "fp32" in name) < 1e-4
    assert all(0 < row["change"][name] < 0.1 for name in sides if "int8" in name)
    assert len(compiled) == sum(name.endswith("compiled") for name in row["images_per_second"])
    assert set(row["times_as_fast"]) == set(row["images_per_second"]) - {OURS}
    floats = {name for name in row["images_per_second"] if "int8" not in name}
    assert set(row["float_times_as_fast"]) == floats - {OURS_FLOAT}
    assert row["seconds_to_compile"] == {OURS: 1.5, "vit fp32 ahead": 1.5, "timm fp32 ahead": 1.5}
    assert "  without torchao: it is not installed" in said
    assert result["machine"]["multiplies_bytes"] in (True, False)
    assert markdown(result).count("\n") == 2


@pytest.mark.slow
@pytest.mark.exhaustive
def test_what_is_compiled_ahead_is_the_same_model() -> None:
    torch.manual_seed(0)
    model = create_model(**(TINY | {"num_classes": 5})).eval()
    assert isinstance(model, VisionTransformer)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    ahead = AHEAD(model, lambda _: None)
    images = torch.rand(3, 3, 8, 8)
    with torch.inference_mode():
        expected = model(images)
        for name, program in ahead.programs.items():
            change = (program(images) - expected).norm() / expected.norm()
            assert change < (1e-5 if "fp32" in name else 0.1), name
    assert set(ahead.seconds) == set(ahead.programs) >= {OURS, OURS_FLOAT, "timm fp32 ahead"}


def test_onnxruntime_has_the_threads_of_torch() -> None:
    assert eight_bits._options().intra_op_num_threads == torch.get_num_threads()


def test_the_command_writes_what_it_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "eight_bits.json"
    words = ["eight_bits", "--models", "Ti", "--batch_sizes", "2", "--turns", "1", "--output", str(file)]
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == markdown(json.loads(file.read_text()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "Tj"], "--models: 'Tj' is not valid: choose from B, CIFAR, L, S, Ti"),
        (["--batch_sizes", "0"], "--batch_sizes: 0 is not valid: it must be above 0"),
        (["--turns", "0"], "--turns: 0 is not valid: it must be above 0"),
    ],
)
def test_bad_arguments_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eight_bits", *words]) == 2
    assert message in capsys.readouterr().err
