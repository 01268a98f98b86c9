"""`vit convert`: files that the other library reads, printed differences, one-line refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.weights.test_npz import SMALL, google_arrays
from vit import create_model
from vit.cli import main
from vit.config import ModelConfig
from vit.hub import load_model, open_model
from vit.libraries import NoCounterpart
from vit.models.initialization import perturb_weights
from vit.weights import convert as convert_module
from vit.weights.convert import convert_model, logit_difference, verify_conversion
from vit.weights.files import read_tensors, write_tensors
from vit.weights.layouts import get_layout
from vit.weights.sources import open_source

TINY = {"image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("npz") / "weights.npz"
    write_tensors(path, {name: torch.from_numpy(array) for name, array in google_arrays(SMALL).items()})
    return path


def test_a_google_file_is_converted_to_timm_and_back(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, back = tmp_path / "timm.safetensors", tmp_path / "back.npz"
    assert main(["convert", str(npz), "--to", "timm", "--output", str(there), "--verify"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{npz}: 40 tensors in the layout npz, 33 loaded")
    assert [line.split(":")[0] for line in said[2:]] == ["source (npz)", "timm", "round trip", "written"]
    assert all(float(line.split()[-1]) < 1e-5 for line in said[2:4])
    assert said[4] == "round trip: bitwise"
    assert "blocks.1.attn.qkv.bias" in load_file(there)
    model = load_model(ModelConfig(name="vit", pretrained=str(there), **TINY)).model  # type: ignore[arg-type]
    write_tensors(back, convert_model(model, "npz").tensors)
    first, second = read_tensors(npz), read_tensors(back)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_transformers_shows_no_progress_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    model = load_model(ModelConfig(name="vit", **TINY)).model  # type: ignore[arg-type]
    conversion = convert_model(model, "hf")
    shown = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()  # as in a process of its own
    try:
        assert list(verify_conversion(conversion))
        assert logging.is_progress_bar_enabled(), "the user's setting stands"
    finally:
        if not shown:
            logging.disable_progress_bar()
    assert "Loading" not in capfd.readouterr().err


@pytest.mark.parametrize("target", ["timm", "torchvision", "npz", "hf"])
def test_every_target_gives_the_same_logits(target: str) -> None:
    model = load_model(ModelConfig(name="vit", **TINY)).model  # type: ignore[arg-type]
    perturb_weights(model)
    conversion = convert_model(model, target)
    assert logit_difference(model, conversion.layout, conversion.tensors) < 1e-5
    assert list(verify_conversion(conversion))[-1] == "round trip: bitwise"


@pytest.mark.parametrize(
    ("changes", "layout"),
    [
        ({}, "timm-rope"),
        ({"qkv_bias": False}, "timm-eva"),
        (
            {"rope_coordinates": "centred", "feedforward": "swiglu", "qkv_bias": False, "layer_scale": 0.1},
            "timm-dinov3",
        ),
    ],
)
def test_rotary_models_are_written_as_timms_of_evas_blocks(
    changes: dict[str, Any], layout: str, tmp_path: Path
) -> None:
    model = load_model(ModelConfig(name="vit", positions="rope", **(TINY | {"num_heads": 2} | changes))).model
    perturb_weights(model)
    conversion = convert_model(model, "timm")
    assert conversion.layout.name == layout
    assert list(verify_conversion(conversion))[-1] == "round trip: bitwise"
    conversion.write(tmp_path / "rotary.safetensors")
    assert load_file(tmp_path / "rotary.safetensors").keys() == conversion.tensors.keys()


def test_swiglu_of_another_multiple_is_verified() -> None:
    settings: dict[str, Any] = {"feedforward": "swiglu", "swiglu_multiple": 5, **TINY}
    model = create_model("vit", **settings)
    perturb_weights(model)
    assert list(verify_conversion(convert_model(model, "timm")))[-1] == "round trip: bitwise"


@pytest.mark.parametrize("target", ["torchvision", "npz", "hf"])
def test_what_no_tensor_shows_is_refused_without_comparing(target: str) -> None:
    """Rotary positions have no tensors: the names alone would be a plain model's without positions."""
    model = load_model(ModelConfig(name="vit", positions="rope", **TINY)).model  # type: ignore[arg-type]
    with pytest.raises(NoCounterpart, match=r"model\.positions"):
        convert_model(model, target)


@pytest.mark.parametrize(
    ("target", "changes", "setting"),
    [
        ("npz", {"qkv_bias": False}, "qkv_bias False"),
        ("npz", {"head_bias": False}, "head_bias False"),
        ("npz", {"final_norm": "none"}, "final_norm 'none'"),
        ("timm", {"positions": "rope", "feedforward": "swiglu", "embedding_norm": True}, "positions"),
    ],
)
def test_a_setting_that_the_target_lacks_is_named(target: str, changes: dict[str, Any], setting: str) -> None:
    model = load_model(ModelConfig(name="vit", **(TINY | changes))).model
    with pytest.raises(NoCounterpart, match=rf"model\.{setting}"):
        convert_model(model, target)


@pytest.mark.parametrize(
    ("name", "target", "setting"),
    [
        ("resnet18_cifar", "torchvision", "stem 'cifar'"),
        ("resnet18_cifar", "timm", "stem 'cifar'"),
        ("resnet50d", "torchvision", "stem 'deep'"),
    ],
)
def test_a_resnet_that_the_library_lacks_is_refused_without_comparing(name: str, target: str, setting: str) -> None:
    model = create_model(name, num_classes=3, image_size=32)
    with pytest.raises(NoCounterpart, match=rf"{target} has no ResNet with model\.{setting}"):
        convert_model(model, target)


@pytest.mark.parametrize(
    ("target", "changes", "said"),
    [
        ("npz", {"pooling": "gap"}, "model.pooling cls in place of gap"),
        ("torchvision", {"num_heads": 4}, "model.num_heads 12 in place of 4"),
        ("npz", {"norm_eps": 0.1}, "in place of 0.1"),
        ("npz", {"feedforward": "quick_gelu"}, "in place of quick_gelu"),
        ("torchvision", {"position_resize": "bicubic_corners"}, ""),
    ],
)
def test_what_a_file_alone_does_not_tell_is_said(target: str, changes: dict[str, Any], said: str) -> None:
    sizes: dict[str, Any] = {"image_size": 32, "patch_size": 16, "width": 768, "depth": 1, "num_heads": 12}
    model = create_model("vit", num_classes=3, **(sizes | changes))
    note = convert_model(model, target).note
    assert said in note
    assert bool(note) == bool(said)


def test_images_of_other_than_three_channels_are_compared() -> None:
    sizes: dict[str, Any] = {"image_size": 32, "patch_size": 16, "width": 24, "depth": 1, "num_heads": 3}
    model = create_model("vit", in_channels=1, num_classes=3, **sizes)
    perturb_weights(model)
    assert any("round trip" in line for line in verify_conversion(convert_model(model, "timm")))


def test_a_difference_is_detected(npz: Path) -> None:
    model = load_model(ModelConfig(pretrained=str(npz))).model
    conversion = convert_model(model, "timm")
    wrong = {name: tensor.clone() for name, tensor in conversion.tensors.items()}
    wrong["blocks.0.attn.qkv.weight"] = wrong["blocks.0.attn.qkv.weight"].flip(0)
    assert logit_difference(model, conversion.layout, wrong) > 1e-3
    with pytest.raises(ValueError, match=r"--verify: timm: largest relative difference .*, more than rounding's 1e-04"):
        list(verify_conversion(replace(conversion, tensors=wrong)))


def test_a_nan_difference_is_refused(npz: Path) -> None:
    conversion = convert_model(load_model(ModelConfig(pretrained=str(npz))).model, "timm")
    corrupt = dict(conversion.tensors) | {"norm.bias": torch.full_like(conversion.tensors["norm.bias"], torch.nan)}
    with pytest.raises(ValueError, match=r"--verify: timm: .* random images nan, more than"):
        list(verify_conversion(replace(conversion, tensors=corrupt)))


def test_a_round_trip_that_is_not_bitwise_is_refused(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversion = convert_model(load_model(ModelConfig(pretrained=str(npz))).model, "timm")
    monkeypatch.setattr("vit.weights.convert.is_round_trip_exact", lambda *_: False)
    with pytest.raises(ValueError, match=r"--verify: the round trip through timm is not bitwise"):
        list(verify_conversion(conversion))


def test_nothing_is_written_if_verification_fails(
    npz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vit.weights.convert.is_round_trip_exact", lambda *_: False)
    path = tmp_path / "out.safetensors"
    assert main(["convert", str(npz), "--to", "timm", "--output", str(path), "--verify"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not path.exists()


def test_a_nan_tensor_is_named_and_nothing_is_written(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = read_tensors(npz)
    tensors["Transformer/encoder_norm/bias"][3] = torch.nan
    write_tensors(tmp_path / "nan.npz", tensors)
    path = tmp_path / "out.safetensors"
    assert main(["convert", str(tmp_path / "nan.npz"), "--to", "timm", "--output", str(path), "--verify"]) == 2
    said = capsys.readouterr().err
    assert "nan.npz: Transformer/encoder_norm/bias has NaN or infinite values" in said
    assert said.count("\n") == 1
    assert not path.exists()


def test_the_source_is_compared_where_the_architecture_was_named(tmp_path: Path) -> None:
    path = tmp_path / "timm.safetensors"  # its tensors do not tell how many heads there are
    first = load_model(ModelConfig(name="vit", **TINY)).model  # type: ignore[arg-type]
    write_tensors(path, convert_model(first, "timm").tensors)
    loaded = load_model(ModelConfig(name="vit", pretrained=str(path), **TINY))  # type: ignore[arg-type]
    conversion = convert_model(loaded.model, "torchvision")
    said = list(verify_conversion(conversion, open_source(str(path)), loaded.report))
    assert said[0].startswith("source (timm): largest relative difference")
    assert float(said[0].split()[-1]) < 1e-5

    def absent(*_: object) -> Any:
        raise ImportError("no module", name="timm")

    source = replace(open_source(str(path)), layout=replace(get_layout("timm"), reference=absent))
    said = list(verify_conversion(conversion, source, loaded.report))
    assert said[0] == "source not compared: timm is not installed"
    assert len(said) == 3


def test_the_reason_for_no_comparison_is_given(npz: Path) -> None:
    loaded = load_model(ModelConfig(pretrained=str(npz), image_size=64))
    lines = list(verify_conversion(convert_model(loaded.model, "timm"), open_source(str(npz)), loaded.report))
    assert lines[0] == "source not compared: its positions were resized to the model's grid"
    assert len(lines) == 3


def test_positions_are_written_at_the_size_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="needs the extra 'text'")
    words = ["convert", "vit_tiny_patch16_224", "--to", "hf", "--image_size", "64", "--output", str(tmp_path / "out")]
    assert main([*words, "--verify"]) == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["image_size"] in (64, [64, 64])
    assert open_model(tmp_path / "out").preprocessing.image_size == (64, 64)
    assert "round trip: bitwise" in capsys.readouterr().out


def test_a_run_is_converted_as_it_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vit.hub.sources.holds_checkpoints", lambda _: True)
    assert main(["convert", str(tmp_path), "--architecture", "vit_tiny_patch16_224", "--to", "timm", "--verify"]) == 2
    said = capsys.readouterr().err
    assert "architecture: it has no effect on" in said
    assert "new_head" not in said


def test_tensors_without_a_counterpart_are_named() -> None:
    scaled = load_model(ModelConfig(name="vit", layer_scale=0.1, **TINY)).model  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"--to: npz has no counterpart for blocks\.0\.scale1\.gamma"):
        convert_model(scaled, "npz")
    with pytest.raises(ValueError, match=r"--to: torchvision has no model with model\.layer_scale 0\.1"):
        convert_model(scaled, "torchvision")
    assert convert_model(scaled, "timm").tensors["blocks.1.ls2.gamma"][0] == 0.1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["vit", "--to", "timm"], "nothing to do; give --output, --verify or both"),
        (["vit", "--to", "tim", "--verify"], "invalid choice: 'tim'"),
        (["vit", "--architecture", "vit", "--to", "timm", "--verify"], "architecture: it has no effect on 'vit'"),
        (["absent.npz", "--to", "timm", "--verify"], "there is no file 'absent.npz'"),
        (["resnet18", "--to", "hf", "--verify"], "a ResNet is written for timm or torchvision"),
        (["resnet20", "--to", "timm", "--verify"], "timm has no ResNet with model.depth 20: it has three stages"),
        (["resnet20", "--to", "torchvision", "--output", "a.pth"], "torchvision has no ResNet with model.depth 20"),
        (["vit", "--to", "npz", "--output", "a.safetensors"], "its suffix must be one of .npz"),
        (["absent.npz", "--to", "npz", "--output", "a.safetensors"], "its suffix must be one of .npz"),
        (["absent.npz", "--to", "hf", "--output", "pyproject.toml"], "a file of that name exists"),
    ],
)
def test_wrong_arguments_are_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", *words]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1


def test_facts_about_a_source(npz: Path) -> None:
    source = open_source(str(npz))
    assert source.config is not None
    assert source.config.num_classes == source.num_classes == 5
    assert source.layout is not None
    assert source.layout.name == "npz"


def test_an_unsupported_source_is_skipped_and_a_defect_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NoCounterpart("--verify: no such model")

    def fail(*_: object) -> None:
        raise ValueError("a defect")

    source: Any = SimpleNamespace(layout=SimpleNamespace(name="timm"), tensors={})
    monkeypatch.setattr(convert_module, "_config", lambda model: model)
    monkeypatch.setattr(convert_module, "without_dropped", lambda *_: {})
    monkeypatch.setattr(convert_module, "_reference", refuse)
    assert convert_module._compare_source(nn.Identity(), source, None) == "source not compared: no such model"
    monkeypatch.setattr(convert_module, "_reference", fail)
    with pytest.raises(ValueError, match="a defect"):
        convert_module._compare_source(nn.Identity(), source, None)
