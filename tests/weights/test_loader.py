"""Other libraries' weights: the same logits, or a refusal that names the tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vit.config import ModelConfig
from vit.hub import create_model, load_model
from vit.models import Classifier
from vit.weights.convert import convert_model
from vit.weights.loader import check_numbers, load_weights

TIMM = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 4}
OURS: dict[str, Any] = {"image_size": 64, "depth": 2, "width": 48, "num_heads": 4}
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vit_tiny_patch16_224": (TIMM, OURS),
    "vit_tiny_patch16_384": (TIMM, OURS),
    "deit_tiny_distilled_patch16_224": (TIMM, OURS),
    "deit3_small_patch16_224": (TIMM, OURS),
    "vit_medium_patch16_reg4_gap_256": (TIMM, OURS),
    "resnet18": ({}, {"image_size": 64}),
}
"""A name both know: timm's options, ours."""


def randomized(model: nn.Module) -> nn.Module:
    """Perturbed everywhere: initial zeros would hide a wrong name."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


@pytest.fixture(scope="module")
def timm_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Path]]:
    """timm's model of a name with random weights and 37 classes, and its file."""
    made: dict[str, tuple[nn.Module, Path]] = {}

    def of(name: str) -> tuple[nn.Module, Path]:
        if name not in made:
            model = randomized(timm.create_model(name, num_classes=37, **LAYOUTS[name][0]))
            path = tmp_path_factory.mktemp("timm") / f"{name}.safetensors"
            save_file(model.state_dict(), path)
            made[name] = (model, path)
        return made[name]

    return of


@pytest.mark.parametrize("name", LAYOUTS)
def test_timms_file_gives_timms_logits(name: str, timm_file: Callable[[str], tuple[Any, Path]]) -> None:
    theirs, path = timm_file(name)
    ours = create_model(name, pretrained=str(path), num_classes=37, **LAYOUTS[name][1]).eval()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_new_head_keeps_the_features(name: str, timm_file: Callable[[str], tuple[Any, Path]]) -> None:
    _, path = timm_file(name)
    whole = create_model(name, pretrained=str(path), num_classes=37, **LAYOUTS[name][1]).eval()
    loaded = load_model(ModelConfig(name=name, pretrained=str(path), new_head=True, **LAYOUTS[name][1]), num_classes=5)
    report = loaded.report
    assert report is not None
    assert {key.split(".")[0] for key in report.replaced} == set(loaded.model.head_names())
    assert set(report.loaded) | set(report.replaced) == set(loaded.model.state_dict())
    for key, tensor in loaded.model.state_dict().items():
        if key in report.replaced:
            assert tensor.shape[0] == 5
        else:
            assert torch.equal(tensor, whole.state_dict()[key]), key


def test_other_classes_without_a_new_head_are_refused(timm_file: Callable[[str], tuple[Any, Path]]) -> None:
    name = "vit_tiny_patch16_224"
    with pytest.raises(ValueError, match=r"model\.new_head: False is not valid: .* has 37 classes and the data 5"):
        load_model(ModelConfig(name=name, pretrained=str(timm_file(name)[1]), **LAYOUTS[name][1]), num_classes=5)


def test_a_stem_that_weights_do_not_have_is_named(timm_file: Callable[[str], tuple[Any, Path]]) -> None:
    _, path = timm_file("vit_tiny_patch16_224")
    rule = "it embeds patches without these layers; set model.stem 'patch'"
    with pytest.raises(ValueError, match=rf"does not have embedding\.stem\.0\.weight.*: {rule}"):
        create_model("vit_tiny_patch16_224", pretrained=str(path), num_classes=37, stem="conv", **OURS)


def test_a_head_is_ignored_if_the_model_has_none(timm_file: Callable[[str], tuple[Any, Path]]) -> None:
    for name in ("vit_tiny_patch16_224", "resnet18"):
        theirs, path = timm_file(name)
        ours = create_model(name, pretrained=str(path), num_classes=0, **LAYOUTS[name][1]).eval()
        images = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            features = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
            torch.testing.assert_close(ours(images), features, rtol=1e-5, atol=1e-5)


def test_positions_are_resized_to_the_models_grid(timm_file: Callable[[str], tuple[Any, Path]]) -> None:
    name = "vit_tiny_patch16_224"
    theirs, path = timm_file(name)
    loaded = load_model(
        ModelConfig(name=name, pretrained=str(path), **(OURS | {"image_size": (96, 128)})), num_classes=37
    )
    assert loaded.report is not None
    assert loaded.report.resized == {"positions.grid": "4×4 → 6×8"}
    assert "positions.grid 4×4 → 6×8" in loaded.report.summary()
    expected = timm.layers.resample_abs_pos_embed(theirs.pos_embed, [6, 8], num_prefix_tokens=1)
    torch.testing.assert_close(loaded.model.state_dict()["positions.grid"], expected[:, 1:], rtol=1e-4, atol=1e-5)
    assert torch.equal(loaded.model.state_dict()["positions.prefix"], theirs.pos_embed[:, :1])


@pytest.mark.parametrize("positions", ["learned_1d", "learned_2d", "relative", "sincos_2d", "rope"])
def test_our_own_positions_are_resized(positions: str) -> None:
    options: dict[str, Any] = {
        "width": 16,
        "num_heads": 2,
        "depth": 2,
        "positions": positions,
        "patch_size": 4,
        "num_classes": 3,
    }
    source = randomized(create_model("vit", image_size=16, **options))
    for size in ((16, 16), (24, 8)):
        model = create_model("vit", image_size=size, **options).eval()
        report = load_weights(model, dict(source.state_dict()), "source", source_grid=(4, 4))
        assert set(report.loaded) == set(model.state_dict())
        learned = positions in ("learned_1d", "learned_2d", "relative")
        assert bool(report.resized) == (learned and size != (16, 16))
        assert model(torch.zeros(1, 3, *size)).isfinite().all()
        if size == (16, 16):
            images = torch.randn(2, 3, 16, 16)
            assert torch.equal(model(images), source(images))


PARTIAL: dict[str, tuple[dict[str, Any], str]] = {
    "deeper model": ({"depth": 3}, r"does not have blocks\.2\."),
    "shallower model": ({"depth": 1}, r"has, and the model does not, blocks\.1\."),
    "another option": ({"qk_norm": True}, r"does not have blocks\.0\.attention\.(query|key)_norm"),
    "registers": ({"num_registers": 2}, r"does not have register_tokens"),
    "another width": ({"width": 96}, r"has shape \(.*48.*\), the model's is \(.*96.*\)"),
    "no class token": ({"class_token": False, "pooling": "gap"}, r"class_token|patches"),
}


@pytest.mark.parametrize(("changes", "expected"), PARTIAL.values(), ids=list(PARTIAL))
def test_a_partial_match_is_refused_by_name(
    changes: dict[str, Any], expected: str, timm_file: Callable[[str], tuple[Any, Path]]
) -> None:
    name = "vit_tiny_patch16_224"
    path = timm_file(name)[1]
    with pytest.raises(ValueError, match=rf"model\.pretrained: .*{expected}") as caught:
        create_model(name, pretrained=str(path), num_classes=37, **(LAYOUTS[name][1] | changes))
    assert "\n" not in str(caught.value)


def test_nothing_is_loaded_on_an_error(timm_file: Callable[[str], tuple[Any, Path]]) -> None:
    name = "vit_tiny_patch16_224"
    model: Classifier = create_model(name, num_classes=37, **LAYOUTS[name][1])
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    tensors = dict(load_file(timm_file(name)[1])) | {"stranger": torch.zeros(1)}
    with pytest.raises(ValueError, match="stranger"):
        load_weights(model, tensors, "file")
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def changed(path: Path, changes: dict[str, Callable[[torch.Tensor], torch.Tensor]]) -> dict[str, torch.Tensor]:
    tensors = dict(load_file(path))
    return tensors | {name: change(tensors[name]) for name, change in changes.items()}


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.complex64])
@pytest.mark.parametrize(
    ("name", "key"), [("vit_tiny_patch16_224", "blocks.0.attn.qkv.weight"), ("resnet18", "layer1.0.conv1.weight")]
)
def test_weights_of_integers_are_named(
    name: str, key: str, dtype: torch.dtype, timm_file: Callable[[str], tuple[Any, Path]]
) -> None:
    model = create_model(name, num_classes=37, **LAYOUTS[name][1])
    corrupt = changed(timm_file(name)[1], {key: lambda tensor: tensor.to(dtype)})
    with pytest.raises(ValueError, match=rf"file: {key} is of the type {str(dtype)[6:]}; weights must be floating"):
        load_weights(model, corrupt, "file")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("name", "key"), [("vit_tiny_patch16_224", "blocks.1.mlp.fc1.bias"), ("resnet18", "layer1.0.bn1.running_var")]
)
def test_weights_that_are_not_finite_are_named(
    name: str, key: str, value: float, timm_file: Callable[[str], tuple[Any, Path]]
) -> None:
    model = create_model(name, num_classes=37, **LAYOUTS[name][1])
    corrupt = changed(timm_file(name)[1], {key: lambda tensor: tensor.index_fill(0, torch.tensor([3]), value)})
    with pytest.raises(ValueError, match=rf"file: {key} has NaN or infinite values"):
        load_weights(model, corrupt, "file")


def test_casts_are_counted(timm_file: Callable[[str], tuple[Any, Path]]) -> None:
    name = "vit_tiny_patch16_224"
    path = timm_file(name)[1]
    model = create_model(name, num_classes=37, **LAYOUTS[name][1])
    whole = load_weights(model, dict(load_file(path)), "file")
    assert whole.cast == {}
    assert "cast" not in whole.summary()
    half = load_weights(model, {key: tensor.half() for key, tensor in load_file(path).items()}, "file")
    assert half.cast == {"float16 → float32": len(model.state_dict())}
    assert f", cast float16 → float32: {len(half.loaded)}" in half.summary()
    tiny = changed(path, {"norm.weight": lambda tensor: tensor.to(torch.float8_e4m3fn)})
    assert load_weights(model, tiny, "file").cast == {"float8_e4m3fn → float32": 1}


def test_the_report_names_the_set_of_weights(timm_file: Callable[[str], tuple[Any, Path]], tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    average = dict(load_file(timm_file(name)[1]))
    raw = {key: torch.zeros_like(tensor) for key, tensor in average.items()}
    torch.save({"state_dict": raw, "state_dict_ema": average}, tmp_path / "both.pth")
    loaded = load_model(ModelConfig(name=name, pretrained=str(tmp_path / "both.pth"), **LAYOUTS[name][1]))
    assert loaded.report is not None
    assert "tensors (state_dict_ema used, state_dict ignored) in the layout timm" in loaded.report.summary()
    assert torch.equal(loaded.model.state_dict()["norm.weight"], average["norm.weight"])


@pytest.mark.parametrize("key", ["weight", "num_batches_tracked"])
def test_complex_numbers_are_refused_also_as_a_count(key: str) -> None:
    """A copy into an integer would leave out the imaginary part, with no more than a warning."""
    model = nn.BatchNorm2d(2)
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_numbers(whole, model, "whole")
    changed = whole | {key: whole[key].to(torch.complex64)}
    with pytest.raises(ValueError, match=rf"changed: {key} is of the type complex64; weights must be floating point"):
        check_numbers(changed, model, "changed")


_SIZES: dict[str, Any] = {"image_size": 32, "patch_size": 16, "width": 48, "depth": 1, "num_heads": 3, "num_classes": 5}


@pytest.mark.parametrize("target", ["ours", "timm", "torchvision", "npz", "hf"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 2, 2, 2)], ids=str)
def test_a_tensor_of_another_number_of_dimensions_is_one_line(
    target: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    model, file = create_model("vit", **_SIZES), tmp_path / "weights.safetensors"
    theirs = model.state_dict() if target == "ours" else convert_model(model, target).tensors
    for name, tensor in theirs.items():
        if tensor.dim() == len(shape):
            continue
        save_file({key: value.contiguous().clone() for key, value in theirs.items()} | {name: torch.ones(shape)}, file)
        for named in ({"name": "vit", **_SIZES}, {}):
            if target == "ours" and not named:
                continue  # our own names alone tell no architecture
            with pytest.raises(ValueError, match=re.escape(str(file))) as refused:
                load_model(ModelConfig(pretrained=str(file), **named))
            assert "\n" not in str(refused.value)


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
@pytest.mark.parametrize("name", ["grid", "prefix", "rows", "columns", "table"])
def test_positions_of_another_number_of_dimensions_are_one_line(name: str, shape: tuple[int, ...]) -> None:
    model = create_model("vit", **_SIZES)
    with pytest.raises(ValueError, match=rf"^model\.pretrained: file: positions\.{name} has shape .* dimensions$"):
        load_weights(model, model.state_dict() | {f"positions.{name}": torch.ones(shape)}, "file")
