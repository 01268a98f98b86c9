"""Sources of weights: timm's folders and names, given grids, the number of classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

from tests.weights.proof import filled
from tests.weights.test_npz import SMALL, google_arrays
from vit.config import ModelConfig, Preprocessing, ViTConfig
from vit.hub import create_model, load_model, open_model
from vit.libraries.timm import stated_preprocessing as timm_preprocessing
from vit.libraries.timm_writing import build_timm
from vit.weights.sources import open_source

PLAIN = ViTConfig(image_size=(64, 64), width=48, depth=2, num_heads=4, num_classes=7)
OURS: dict[str, Any] = {"image_size": 64, "patch_size": 16, "width": 48, "depth": 2, "num_heads": 4}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of timm's, 4×4 patches and a class token."""
    path = tmp_path_factory.mktemp("file") / "small.safetensors"
    with torch.device("meta"):
        model = build_timm(PLAIN)
    save_file(filled(model).state_dict(), path)
    return path


def test_a_timm_folder_is_complete(tmp_path: Path) -> None:
    torch.manual_seed(0)
    name = "vit_tiny_patch16_224"
    model = timm.create_model(name, img_size=64, depth=2, num_classes=3).eval()
    args = {"img_size": 64, "depth": 2}
    save_for_hf(model, tmp_path, model_config={"num_classes": 3}, model_args=args, safe_serialization=True)
    loaded = load_model(ModelConfig(pretrained=str(tmp_path)))
    assert (loaded.model.config.image_size, loaded.model.config.num_classes) == ((64, 64), 3)
    assert loaded.preprocessing is not None
    assert loaded.preprocessing.crop_fraction == 0.9
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model.eval()(images), model(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["TimmWrapperForImageClassification", "TimmWrapperModel"])
def test_a_timm_folder_of_transformers(kind: str, tmp_path: Path) -> None:
    """Its `model_args` is null, and its names have a prefix."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"architecture": "test_vit", "num_labels": 3}
    theirs = getattr(transformers, kind)(transformers.TimmWrapperConfig(**options)).eval()
    theirs.save_pretrained(tmp_path)
    loaded = load_model(ModelConfig(pretrained=str(tmp_path)))
    assert loaded.num_classes == (3 if kind.endswith("Classification") else 0)
    assert loaded.class_names == []
    assert loaded.report is not None
    assert "(prefix timm_model. removed from every name)" in loaded.report.summary()
    images = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        expected = theirs(pixel_values=images)
        expected = expected.logits if loaded.num_classes else expected.pooler_output
        torch.testing.assert_close(loaded.model.eval()(images), expected, rtol=1e-5, atol=1e-5)


def test_a_timm_folder_of_a_model_without_blocks(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=0, num_classes=3)
    save_for_hf(model, tmp_path, model_config={"num_classes": 3}, model_args={"depth": 0}, safe_serialization=True)
    with pytest.raises(ValueError, match=r"'vit_tiny_patch16_224' is not supported: it has no blocks"):
        load_model(ModelConfig(pretrained=str(tmp_path)))


@pytest.mark.parametrize(
    ("argument", "value"),
    [("checkpoint_path", "other.safetensors"), ("pretrained", True), ("pretrained_cfg", {"url": "https://a.b/c"})],
)
@pytest.mark.parametrize("implementation", ["ours", "theirs"])
def test_an_argument_of_a_timm_folder_that_reads_another_file_is_refused(
    argument: str, value: object, implementation: Literal["ours", "theirs"], tmp_path: Path
) -> None:
    model = timm.create_model("test_vit", num_classes=3)
    save_for_hf(model, tmp_path, model_args={"depth": 1, argument: value}, safe_serialization=True)
    with pytest.raises(ValueError, match=rf"config\.json: model_args\.{argument}: .* it is no part of an architecture"):
        open_model(tmp_path, implementation=implementation)


SWIN: dict[str, Any] = {"depths": [1, 1, 1, 1], "embed_dim": 24, "num_heads": [1, 2, 3, 4], "img_size": 64}


@pytest.mark.parametrize("kind", ["TimmWrapperForImageClassification", "TimmWrapperModel"])
@pytest.mark.parametrize(
    ("architecture", "arguments", "implementation"),
    [
        ("test_vit", None, "theirs"),
        ("test_vit", {"depth": 0}, "auto"),
        ("swin_tiny_patch4_window7_224", SWIN | {"window_size": 2}, "auto"),
    ],
)
def test_timm_computes_a_folder_of_transformers(
    kind: str,
    architecture: str,
    arguments: dict[str, Any] | None,
    implementation: Literal["auto", "theirs"],
    tmp_path: Path,
) -> None:
    """timm itself does not read transformers' `config.json`."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"architecture": architecture, "num_labels": 3, "model_args": arguments}
    theirs = getattr(transformers, kind)(transformers.TimmWrapperConfig(**options)).eval()
    theirs.save_pretrained(tmp_path)
    size = 64 if arguments and "img_size" in arguments else 160
    images = torch.randn(2, 3, size, size)
    for source in (str(tmp_path), f"hf:{tmp_path}"):
        opened = open_model(source, implementation=implementation)
        assert opened.implementation == "timm"
        assert opened.num_classes == (3 if kind.endswith("Classification") else 0)
        with torch.no_grad():
            output = theirs(pixel_values=images)
            expected = output.logits if opened.num_classes else output.pooler_output
            torch.testing.assert_close(opened.model(images), expected, rtol=1e-5, atol=1e-5)


def test_tensors_that_timms_model_lacks_are_one_line(tmp_path: Path) -> None:
    save_for_hf(timm.create_model("test_byobnet", num_classes=3), tmp_path, safe_serialization=True)
    save_file({"strange": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"could not be built by timm \(.*stem") as caught:
        open_model(tmp_path)
    assert "fetched" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("implementation", ["ours", "theirs"])
@pytest.mark.parametrize("place", ["hf:{}", "hf:timm/test_vit.r160_in1k"])
def test_hugging_faces_hub_has_timms_folders(
    place: str, implementation: Literal["ours", "theirs"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("test_vit", num_classes=3).eval()
    save_for_hf(theirs, tmp_path, safe_serialization=True)
    fetched: list[str] = []
    monkeypatch.setattr(
        "vit.libraries.transformers.fetch_folder", lambda name, *_, **__: fetched.append(name) or tmp_path
    )
    opened = open_model(place.format(tmp_path), implementation=implementation)
    assert fetched == (["timm/test_vit.r160_in1k"] if "r160" in place else [])
    assert opened.preprocessing.image_size == (160, 160)
    assert opened.provenance.weights == "timm"
    images = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        torch.testing.assert_close(opened.model(images), theirs(images), rtol=1e-5, atol=1e-5)


def test_a_name_that_only_timm_has() -> None:
    with torch.device("meta"):
        model = create_model("vit_wee_patch16_reg1_gap_256", num_classes=3, depth=2)
    assert (model.config.num_registers, model.config.final_norm, model.config.depth) == (1, "pooled", 2)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"'vit_relpos_base_patch16_224' is not supported: it has relative"):
        create_model("vit_relpos_base_patch16_224")


def test_an_ambiguous_grid_must_be_given(file: Path) -> None:
    wide = OURS | {"image_size": (32, 128)}
    with pytest.raises(ValueError, match=r"positions of 17 tokens, which fit 2×8 .* and 4×4 .*model\.pretrained_grid"):
        create_model("vit", pretrained=str(file), **wide)
    asked = ModelConfig(name="vit", pretrained=str(file), pretrained_grid=(4, 4), **wide)
    report = load_model(asked).report
    assert report is not None
    assert report.resized == {"positions.grid": "4×4 → 2×8"}
    asked = ModelConfig(name="vit", pretrained=str(file), pretrained_grid=(2, 8), **wide)
    report = load_model(asked).report
    assert report is not None
    assert report.resized == {}
    with pytest.raises(ValueError, match=r"model\.pretrained_grid: \[3, 5\] is not valid: .* has positions for 16"):
        create_model("vit", pretrained=str(file), pretrained_grid=(3, 5), **wide)
    with pytest.raises(ValueError, match=r"model\.pretrained_grid: \(4, 4\) is not valid: it has no effect without"):
        create_model("vit", pretrained_grid=(4, 4))


def test_positions_of_a_missing_prefix_are_named(file: Path) -> None:
    with pytest.raises(ValueError, match=r"17 patches, neither .* it would fit 4×4 patches and 1 prefix token"):
        create_model("vit", pretrained=str(file), positions_on_prefix=False, **OURS)


def test_a_file_without_the_architecture_needs_a_name(file: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"model\.name: it is missing: .*the layout timm, whose tensors do not determine the number of heads",
    ):
        create_model(pretrained=str(file))
    save_file({"weights": torch.zeros(2)}, tmp_path / "strange.safetensors")
    with pytest.raises(ValueError, match=r"model\.name: it is missing: .* in no known layout"):
        create_model(pretrained=str(tmp_path / "strange.safetensors"))


def test_classes_of_a_wrapped_file_are_counted(tmp_path: Path) -> None:
    arrays = {f"opt/target/{name}": array for name, array in google_arrays(SMALL).items()}
    np.savez(tmp_path / "wrapped.npz", **arrays)  # type: ignore[arg-type]
    assert open_source(str(tmp_path / "wrapped.npz")).num_classes == 5
    cut = {name: array for name, array in arrays.items() if "encoderblock" not in name}
    np.savez(tmp_path / "cut.npz", **cut)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"cut\.npz does not have blocks\.0\."):
        create_model("vit", pretrained=str(tmp_path / "cut.npz"), image_size=32, patch_size=8, width=24, depth=2)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blocks.0.attn.relative_position_bias_table", "relative position biases"),
        ("rel_pos.relative_position_bias_table", "relative position biases"),
        ("blocks.3.attn.rel_pos_h", "relative position biases"),
        ("patch_embed.backbone.conv1.weight", "convolutional stem"),
        ("blocks.1.attns.0.norm.weight", "several branches"),
        ("blocks.1.attn.lambda_q1", "differential attention"),
        ("blocks.1.in_proj.weight", "in parallel"),
        ("Transformer/encoderblock/LayerNorm_0/scale", "stacked in one array"),
    ],
)
def test_a_tensor_of_an_unsupported_part_is_named(name: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"patch_embed.proj.weight": torch.zeros(1), name: torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=rf"other\.safetensors is not supported: it has .*{expected}.*\({name}\)"):
        create_model("vit", pretrained=str(path), **OURS)


def test_squashing_is_supported_and_other_crops_are_said_to_have_no_counterpart() -> None:
    settings = {
        "input_size": (3, 8, 8),
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "mean": (0.5,) * 3,
        "std": (1,) * 3,
    }
    plain, squashed = (timm_preprocessing(settings | own, "name")[0] for own in ({}, {"crop_mode": "squash"}))
    assert plain is not None
    assert squashed == replace(plain, squash=True)
    for changes, how in (
        ({"crop_mode": "border"}, "border, bicubic"),
        ({"interpolation": "lanczos"}, "center, lanczos"),
    ):
        said = f"name crops its images by {how}, which is not supported"
        assert timm_preprocessing(settings | changes, "name") == (None, said)


def test_a_model_whose_crop_is_not_supported_opens_with_a_preprocessing_of_ones_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vit.libraries.timm.stated_preprocessing", lambda *_: (None, "NAME crops oddly"))
    with pytest.raises(ValueError, match=r"^preprocessing: it is missing: NAME crops oddly; give mean, std and"):
        _ = open_model("timm:test_vit", random_weights=True).preprocessing
    own = Preprocessing(image_size=(160, 160))
    assert open_model("timm:test_vit", random_weights=True, preprocessing=own).preprocessing == own


def test_a_timm_siglip_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def small(name: str, **_: Any) -> nn.Module:
        torch.manual_seed(0)
        return create(name, depth=1, img_size=64, num_classes=0)

    monkeypatch.setattr(timm, "create_model", small)
    loaded = load_model(ModelConfig(pretrained="timm:vit_base_patch16_siglip_224.v2_webli"))
    assert loaded.model.config.pooling == "map"  # type: ignore[union-attr]
    assert loaded.model.config.num_classes == 0
    assert loaded.preprocessing is not None
    assert loaded.report is not None
    assert "split" in loaded.report.summary()
    with torch.no_grad():
        images = torch.randn(1, 3, 64, 64)
        expected = small("vit_base_patch16_siglip_224").eval()(images)
        torch.testing.assert_close(loaded.model.eval()(images), expected, rtol=1e-4, atol=1e-4)
