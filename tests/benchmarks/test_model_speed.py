"""The table of whole models: equal work, stored cells, and refused arguments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from benchmarks import model_speed, reference_models, timing
from benchmarks.__main__ import main
from benchmarks.model_speed import MODELS, Cell, Table, measure_cell, measure_table
from benchmarks.model_speed_table import markdown
from benchmarks.reference_models import build_reference
from benchmarks.timing import DTYPES, Seconds
from benchmarks.unsupported import Unsupported
from vit.evaluation.cost import count_parameters
from vit.hub import create_model
from vit.layers.packed import packing_is_faster
from vit.models import inference
from vit.models.vision_transformer import VisionTransformer

TINY: dict[str, Any] = {"name": "vit", "image_size": 8, "patch_size": 4, "width": 24, "depth": 2, "num_heads": 3}


def _tiny(**options: Any) -> VisionTransformer:
    torch.manual_seed(1)
    model = create_model(**(TINY | {"num_classes": 5} | options))
    assert isinstance(model, VisionTransformer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def _say_nothing(line: str) -> None:
    assert line


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "Ti", (TINY | {"num_classes": 5}, (2, 3)))
    monkeypatch.setattr(model_speed, "SHORTEST", 0.0)
    monkeypatch.setitem(timing._PRODUCT_SIDE, "cpu", 16)


@pytest.mark.parametrize(
    "name", ["timm", "torchvision", "vit-pytorch", pytest.param("transformers", marks=pytest.mark.slow)]
)
def test_a_peer_has_our_weights(name: str) -> None:
    model = _tiny()
    peer, difference = build_reference(name, model)
    assert difference < 1e-5
    assert peer(torch.zeros(2, 3, 8, 8)).shape == (2, 5)
    assert all(parameter.requires_grad for parameter in peer.parameters())


@pytest.mark.parametrize("name", ["timm", "vit-pytorch"])
def test_the_cifar_models_pooling_has_peers(name: str) -> None:
    _, difference = build_reference(name, _tiny(pooling="gap", class_token=False))
    assert difference < 1e-5


@pytest.mark.parametrize(
    ("name", "part"), [("timm", "blocks.1.mlp.fc1"), ("vit-pytorch", "transformer.layers.1.1.net.1")]
)
def test_other_weights_do_not_slip_through(name: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = reference_models.REFERENCES[name]

    def broken(ours: VisionTransformer) -> nn.Module:
        model = peer.build(ours)
        with torch.no_grad():
            model.get_parameter(f"{part}.weight").mul_(1.2)
        return model

    monkeypatch.setitem(reference_models.REFERENCES, name, peer._replace(build=broken))
    with pytest.raises(RuntimeError, match=f"^{name} computes something else"):
        build_reference(name, _tiny())


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("torchvision", {"pooling": "gap", "class_token": False}, "torchvision has no model with model.pooling 'gap'"),
        ("vit-pytorch", {"qk_norm": True}, "vit-pytorch has no such model"),
    ],
)
def test_a_library_without_such_a_model_is_unsupported(name: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        build_reference(name, _tiny(**options))


def test_a_library_that_is_not_installed_is_not_compared_and_naming_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(
        reference_models.REFERENCES, "timm", reference_models.REFERENCES["timm"]._replace(package="no_such_package")
    )
    assert Table(kind="forward").references == ["torchvision", "transformers", "vit-pytorch"]
    with pytest.raises(ValueError, match=r"^--peers: 'timm' is not valid: it is not installed"):
        Table(kind="forward", peers=("timm",))


def test_a_library_that_fails_is_not_called_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> nn.Module:
        raise ValueError("tensors were lost")

    monkeypatch.setattr(reference_models, "build_huggingface", refuse)
    with pytest.raises(ValueError, match="tensors were lost"):
        build_reference("transformers", _tiny())


def test_the_order_of_the_peers_is_no_other_table() -> None:
    assert Table(kind="step", peers=("vit-pytorch", "timm")).references == ["timm", "vit-pytorch"]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("kind", ["forward", "step"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_cell_says_what_was_measured(kind: Any, dtype: str) -> None:
    table = Table(kind=kind, models=("Ti",), peers=("timm", "vit-pytorch"), turns=3)
    cell = Cell(kind=kind, model="Ti", batch_size=2, dtype=dtype, compiled=False)
    row = measure_cell(cell, table, _say_nothing)
    assert set(row["images_per_second"]) == {"vit", "timm", "vit-pytorch"}
    assert row["ratios"][row["best_peer"]]["median"] == min(each["median"] for each in row["ratios"].values())
    times = row["seconds"]
    expected = sorted(their[0] / our[0] for our, their in zip(times["vit"], times["timm"], strict=True))[1]
    assert row["ratios"]["timm"]["median"] == pytest.approx(expected, rel=0.02)
    macs = 4 * 24 * 48 + 2 * (5 * 24 * 24 * 12 + 2 * 25 * 24) + 24 * 5
    left_out = 4 * (2 * 5 * 24 + 9 * 24 * 24)
    for side, each in (("timm", macs), ("vit", macs - left_out)):
        gflops = {"forward": 1, "step": 3}[kind] * 2 * each * row["images_per_second"][side]["median"] / 1e9
        assert row["gflops"][side] == pytest.approx(gflops, abs=0.051)
    ways = {"forward": {"weights cast once", "autocast"}, "step": {"autocast"}}[kind] if dtype == "bf16" else {"fp32"}
    ours = "for_inference, packed" if packing_is_faster(DTYPES[dtype]) else "for_inference"
    assert row["ways"].pop("vit") == (ours if kind == "forward" else min(ways))
    assert set(row["ways"].values()) <= ways
    assert ("vit" in row["differences"]) == (kind == "forward")


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_copy_with_other_logits_is_not_timed(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: VisionTransformer, *given: Any, **options: Any) -> VisionTransformer:
        inference_copy = inference.for_inference(model, *given, **options)
        with torch.no_grad():
            inference_copy.get_parameter("norm.weight").mul_(1.3)
        return inference_copy

    monkeypatch.setattr(model_speed, "for_inference", broken)
    cell = Cell(kind="forward", model="Ti", batch_size=2, dtype=dtype, compiled=False)
    with pytest.raises(RuntimeError, match=r"^vit's timed copy computes something else"):
        measure_cell(cell, Table(kind="forward", peers=("timm",), turns=1), _say_nothing)


def test_the_share_of_the_peak_is_taken_within_a_turn() -> None:
    """The host slows down in two of three turns."""
    ours = [Seconds(wall, wall) for wall in (1.0, 2.0, 4.0)]
    product = [Seconds(wall, wall) for wall in (2.0, 1.0, 3.0)]
    functions = {"vit": ours, "timm": ours, "matrix product": product}
    row = model_speed._summary(functions, 2, {"vit": 0.9, "timm": 1.0}, 1.0)
    assert row["share_of_peak"] == {"vit": 0.675, "timm": 0.75}
    assert row["peak_gflops"] == {"median": 0.5, "lower": 0.4, "upper": 0.8}
    assert row["ratios"]["timm"]["median"] == 1.0
    row |= {"kind": "step", "model": "Ti", "batch_size": 2, "dtype": "fp32", "compiled": False}
    assert markdown([row | {"conditions": {"peers": ["timm"]}}]).splitlines()[4].split(" | ")[8:] == [
        "1.000 (1.000–1.000)",
        "90%",
        "67.5%",
        "0.5 (0.4–0.8)",
        "older |",
    ]


@pytest.mark.usefixtures("tiny")
def test_a_step_trains() -> None:
    cell = Cell(kind="step", model="Ti", batch_size=2, dtype="fp32", compiled=False)
    model = _tiny()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    batch = torch.randn(2, 3, *model.config.image_size), torch.tensor([0, 4])
    model_speed._step(cell, model, batch)()
    assert all(not torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.usefixtures("tiny")
def test_a_stopped_table_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    real = model_speed.measure_cell

    def stopping(cell: Cell, table: Table, progress: Any) -> dict[str, Any]:
        if len(measured) == 1:
            measured.append("stopped")
            raise KeyboardInterrupt
        measured.append(cell.name)
        return real(cell, table, progress)

    monkeypatch.setattr(model_speed, "measure_cell", stopping)
    table = Table(kind="forward", models=("Ti",), dtypes=("fp32",), peers=("timm",), turns=2)
    with pytest.raises(KeyboardInterrupt):
        measure_table(table, tmp_path, _say_nothing)
    assert "forward | Ti | 2 | fp32 | eager" in (tmp_path / "table.md").read_text()
    rows = measure_table(table, tmp_path, _say_nothing)
    assert measured == ["forward_Ti_2_fp32_eager", "stopped", "forward_Ti_3_fp32_eager"]
    assert [row["batch_size"] for row in rows] == [2, 3]
    stored = json.loads((tmp_path / "table.json").read_text())
    assert stored["rows"] == rows
    told: list[str] = []
    measure_table(table, tmp_path, told.append)
    assert len(told) == 2
    monkeypatch.setattr(model_speed, "code_digest", lambda _: "other")
    assert measure_table(table, tmp_path, told.append) == rows
    assert [words.split(": ")[1].split(";")[0] for words in told[2::2]] == [
        "stored, measured with other code of this package"
    ] * 2


@pytest.mark.usefixtures("tiny")
def test_what_was_measured_otherwise_is_not_overwritten(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"models": ("Ti",), "dtypes": ("fp32",), "peers": ("timm",)}
    measure_table(Table(kind="forward", batch_sizes=(2,), turns=2, **settings), tmp_path, _say_nothing)
    cell = tmp_path / "cells" / "forward_Ti_2_fp32_eager.json"
    renamed = cell.with_name("forward_Ti_3_fp32_eager.json")
    renamed.write_bytes(cell.read_bytes())
    with pytest.raises(
        ValueError, match=r"forward_Ti_3_fp32_eager.json contains another cell, forward_Ti_2_fp32_eager"
    ):
        measure_table(Table(kind="forward", turns=2, **settings), tmp_path, _say_nothing)
    renamed.unlink()
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.*")}
    for kind in ("forward", "step"):
        with pytest.raises(ValueError, match=r"forward_Ti_2_fp32_eager.json was measured with turns 2, now 1: give"):
            measure_table(Table(kind=kind, turns=1, **settings), tmp_path, _say_nothing)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.*")} == before


@pytest.mark.usefixtures("tiny")
def test_where_machines_differ_a_table_says_whose_cells_are_whose(tmp_path: Path) -> None:
    table = Table(kind="forward", models=("Ti",), batch_sizes=(2, 3), dtypes=("fp32",), peers=("timm",), turns=2)
    first, second = measure_table(table, tmp_path, _say_nothing)
    assert markdown([first, second]).endswith("}`\n")
    other = second | {"conditions": second["conditions"] | {"cores": -1}}
    *_, mine, _, theirs = markdown([first, other]).splitlines()
    assert mine.endswith("}`: forward_Ti_2_fp32_eager")
    assert theirs.endswith("}`: forward_Ti_3_fp32_eager")
    assert '"cores": -1' in theirs


@pytest.mark.usefixtures("tiny")
def test_a_table_of_a_version_that_asked_less_goes_on(tmp_path: Path) -> None:
    table = Table(kind="forward", models=("Ti",), batch_sizes=(2,), dtypes=("fp32",), peers=("timm",), turns=2)
    measure_table(table, tmp_path, _say_nothing)
    cell = tmp_path / "cells" / "forward_Ti_2_fp32_eager.json"
    row = json.loads(cell.read_text())
    del row["conditions"]["multiplies_bfloat16"]
    cell.write_text(json.dumps(row))
    assert measure_table(table, tmp_path, _say_nothing) == [row]
    del row["conditions"]["threads"]
    cell.write_text(json.dumps(row))
    with pytest.raises(ValueError, match="was measured with threads None, now"):
        measure_table(table, tmp_path, _say_nothing)


@pytest.mark.parametrize("content", ["", '{"kind": "forw', "[]", '{"a": 1}', "null"])
def test_a_file_that_is_no_cell_is_named_before_anything_is_measured(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: Any) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr(model_speed, "measure_cell", measure)
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / "strange.json").write_text(content)
    assert main(["forward", "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "cells/strange.json is not a finished cell: remove it, or give another folder" in said
    assert said.count("\n") == 1


def test_the_cifar_model_is_the_recipes() -> None:
    recipe = yaml.safe_load(Path("configs/cifar10_vit_small_cpu.yaml").read_text())["model"]
    assert {name: MODELS["CIFAR"][0][name] for name in recipe} == recipe


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("kind", ["forward", "step"])
def test_every_library_is_compiled(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compile(model: nn.Module, mode: str | None) -> nn.Module:
        assert mode is None, "CUDA graphs are CUDA's"
        compiled.append(type(model).__module__.split(".")[0])
        return model

    monkeypatch.setattr(torch, "compile", compile)
    table = Table(kind=kind, models=("Ti",), peers=("timm",), turns=1, compile=True)
    monkeypatch.setattr(inference, "packing_is_faster", lambda _: True)
    row = measure_cell(next(table.cells()), table, _say_nothing)
    assert compiled == ["vit", "timm"]
    assert row["ways"]["vit"] == {"forward": "for_inference, packed", "step": "fp32"}[kind]


def test_on_cuda_graphs_play_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda _, mode: mode)
    modes = {device: model_speed._compiled(nn.Identity(), device=torch.device(device)) for device in ("cpu", "cuda")}
    assert modes == {"cpu": None, "cuda": "reduce-overhead"}


@pytest.mark.usefixtures("tiny")
def test_compared_logits_are_not_those_of_warm_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA the first two calls of a compiled model are none of those that are timed."""
    forward, check_logits, calls = model_speed._forward, model_speed._check_logits, []

    def counted(*given: Any, **options: Any) -> Any:
        run = forward(*given, **options)
        return lambda: calls.append(run) or run()

    def check(*given: Any) -> float:
        assert len(calls) == 3
        return check_logits(*given)

    monkeypatch.setattr(model_speed, "_forward", counted)
    monkeypatch.setattr(model_speed, "_check_logits", check)
    cell = Cell(kind="forward", model="Ti", batch_size=2, dtype="fp32", compiled=False)
    measure_cell(cell, Table(kind="forward", peers=("timm",), turns=1), _say_nothing)
    assert len(calls) > 3


def test_the_code_that_is_timed_is_there() -> None:
    assert all(Path(place).exists() for place in model_speed._CODE)
    timed = ("vit/linear.py", *(f"vit/{name}/**/*.py" for name in ("attention", "layers", "models")))
    files = [file for place in timed for file in Path().glob(place)]
    imported = {name for file in files for name in re.findall(r"^ *from (vit\.[\w.]+) import", file.read_text(), re.M)}
    known = tuple(place.removesuffix(".py") for place in model_speed._CODE)
    assert "vit.linear" in imported
    others = sorted(name for name in imported - {"vit.exports"} if not name.replace(".", "/").startswith(known))
    assert others == []


def test_the_largest_model_is_timed_where_it_is_asked_for() -> None:
    assert {cell.model for cell in Table(kind="forward").cells()} == {"Ti", "S", "B", "CIFAR"}
    assert [cell.batch_size for cell in Table(kind="forward", models=["L"], dtypes=["bf16"]).cells()] == [1, 8]
    with torch.device("meta"):
        assert count_parameters(create_model(**MODELS["L"][0])) == 304_326_632, "Dosovitskiy et al. 2021: 307 M"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--models", "Tiny"], "--models: 'Tiny'"),
        (["--peers", "tim"], "--peers: 'tim' is not valid: did you mean 'timm'?"),
        (["--dtypes", "fp8"], "--dtypes: 'fp8'"),
        (["--batch_sizes", "0"], "--batch_sizes: 0"),
        (["--turns", "0"], "--turns: 0"),
    ],
)
def test_words_that_are_refused(
    words: list[str], field: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["forward", *words, "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert field in said
