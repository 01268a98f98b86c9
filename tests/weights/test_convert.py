"""`vit convert`: files that the other library reads, differences that are printed, refusals in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.weights.test_npz import SMALL, google_arrays
from vit.cli import main
from vit.config import ModelConfig
from vit.hub import load_model
from vit.weights.convert import convert_model, difference, perturb, verify
from vit.weights.files import read_tensors, write_tensors
from vit.weights.sources import open_source

TINY = {"image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "num_heads": 3, "num_classes": 5}


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("npz") / "weights.npz"
    write_tensors(path, {name: torch.from_numpy(array) for name, array in google_arrays(SMALL).items()})
    return path


def test_a_file_of_googles_becomes_timms_and_comes_back(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, back = tmp_path / "timm.safetensors", tmp_path / "back.npz"
    assert main(["convert", str(npz), "--to", "timm", "--output", str(there), "--verify"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{npz}: 40 tensors in the layout npz, 33 loaded")
    assert [line.split(":")[0] for line in said[3:]] == ["source (npz)", "timm", "round trip"]
    assert all(float(line.split()[-1]) < 1e-5 for line in said[3:5])
    assert said[5] == "round trip: bitwise"
    assert "blocks.1.attn.qkv.bias" in load_file(there)
    model = load_model(ModelConfig(name="vit", pretrained=str(there), **TINY)).model  # type: ignore[arg-type]
    write_tensors(back, convert_model(model, "npz").tensors)
    first, second = read_tensors(npz), read_tensors(back)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("target", ["timm", "torchvision", "npz", "hf"])
def test_every_target_gives_the_same_logits(target: str) -> None:
    model = load_model(ModelConfig(name="vit", **TINY)).model  # type: ignore[arg-type]
    perturb(model)
    conversion = convert_model(model, target)
    assert difference(model, conversion.layout, conversion.tensors) < 1e-5
    assert verify(conversion)[-1] == "round trip: bitwise"


def test_a_difference_is_seen(npz: Path) -> None:
    model = load_model(ModelConfig(pretrained=str(npz))).model
    conversion = convert_model(model, "timm")
    wrong = {name: tensor.clone() for name, tensor in conversion.tensors.items()}
    wrong["blocks.0.attn.qkv.weight"] = wrong["blocks.0.attn.qkv.weight"].flip(0)
    assert difference(model, conversion.layout, wrong) > 1e-3


def test_what_a_library_has_no_place_for_is_named() -> None:
    scaled = load_model(ModelConfig(name="vit", layer_scale=0.1, **TINY)).model  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"--to: torchvision has no place for blocks\.0\.scale1\.gamma"):
        convert_model(scaled, "torchvision")
    assert convert_model(scaled, "timm").tensors["blocks.1.ls2.gamma"][0] == 0.1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["vit", "--random", "--to", "timm"], "nothing to do; give --output, --verify or both"),
        (["vit", "--random", "--to", "tim", "--verify"], "invalid choice: 'tim'"),
        (["vit", "--random", "--name", "vit", "--to", "timm", "--verify"], "--name: it has no effect with --random"),
        (["absent.npz", "--to", "timm", "--verify"], "there is no file 'absent.npz'"),
        (["resnet18", "--random", "--to", "timm", "--verify"], "a ResNet's tensors have the same names"),
        (["vit", "--random", "--to", "npz", "--output", "a.safetensors"], "its suffix must be one of .npz"),
    ],
)
def test_wrong_words_are_one_line(words: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", *words]) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert said.count("\n") == 1


def test_a_source_tells_what_it_knows(npz: Path) -> None:
    source = open_source(str(npz))
    assert source.config is not None
    assert source.config.num_classes == source.classes == 5
    assert source.layout is not None
    assert source.layout.name == "npz"
