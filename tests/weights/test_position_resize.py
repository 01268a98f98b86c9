"""Positions at other image sizes: as the library resizes them, by every way of using another size, and kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.weights import hf_models
from tests.weights.position_resize import (
    FACEBOOK,
    HUGGING_FACE,
    NATIVE,
    OTHER_TIMM,
    PLAIN,
    SIZES,
    TIMMS,
    Case,
    facebook_case,
    google_case,
    huggingface_case,
    open_clip_case,
    other_timm_case,
    timm_case,
    torchvision_case,
)
from vit.config import ModelConfig, PositionResize, ViTConfig
from vit.hub import create_model, load_model
from vit.models import VisionTransformer, build_model, config_from_dict, config_to_dict
from vit.weights.convert import convert_model
from vit.weights.npz import BIG_VISION, NPZ

WAYS: tuple[PositionResize, ...] = tuple(way for way in get_args(PositionResize) if way != "geometric")
"""Those for learned positions."""


def check(case: Case, way: PositionResize) -> None:
    """The library's outputs at every size, which another way of resizing does not give."""
    config = case.ours.config
    assert config.position_resize == way
    for size in (NATIVE, *case.sizes):
        assert case.difference(size) <= 1e-5, size
    if not config.resizes_positions or not case.sizes:
        return
    other = VisionTransformer(replace(config, position_resize="bicubic" if way != "bicubic" else "bicubic_offset"))
    other.load_state_dict(case.ours.state_dict())
    assert replace(case, ours=other.eval()).difference(SIZES[1]) > 1e-4


@pytest.mark.filterwarnings("ignore::UserWarning")  # in timm's interpolator
@pytest.mark.parametrize("name", TIMMS)
def test_as_timm(name: str) -> None:
    check(timm_case(name), "geometric" if "BEiT" in name else "bicubic_antialiased")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", OTHER_TIMM)
def test_as_timms_other_families(name: str, tmp_path: Path) -> None:
    check(other_timm_case(name, tmp_path), "bicubic_antialiased")


def test_as_torchvision() -> None:
    check(torchvision_case(), "bicubic_corners")


def test_as_open_clip() -> None:
    check(open_clip_case(), "bicubic_antialiased")


@pytest.mark.parametrize("layout", [NPZ, BIG_VISION], ids=["npz", "big_vision"])
def test_as_google(layout: Any) -> None:
    check(google_case(layout), "bilinear_corners")


@pytest.mark.parametrize("name", FACEBOOK)
def test_as_facebook(name: str) -> None:
    ways: dict[str, PositionResize] = {"dino": "bicubic_offset", "mae": "bicubic"}
    check(facebook_case(name), ways.get(FACEBOOK[name].__name__, "bicubic_antialiased"))


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_as_transformers(name: str, tmp_path: Path) -> None:
    case = huggingface_case(name, tmp_path)
    way: PositionResize = "bilinear" if case.ours.config.positions == "relative" else "bicubic"
    if "Registers" in name or name.startswith(("DINOv3", "Aimv2")):
        way = "bicubic_antialiased"
    if name.startswith("Siglip2"):
        way = "bilinear_antialiased"
    check(case, way)


@pytest.mark.parametrize("name", [name for name in HUGGING_FACE if name.startswith("Aimv2")])
def test_transformers_aimv2_takes_its_own_size_alone(name: str, tmp_path: Path) -> None:
    case = huggingface_case(name, tmp_path)
    with pytest.raises(RuntimeError, match="must match the size"):
        case.theirs(torch.randn(1, 3, *SIZES[0]))
    assert case.ours(torch.randn(1, 3, *SIZES[0])).isfinite().all()


# ------------------------------------------------------------------ the choice stays with the model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DINOv2 of transformers, for images of 32 pixels and patches of 8."""
    path = tmp_path_factory.mktemp("dinov2")
    hf_models.saved(hf_models.CASES["Dinov2Model"], path)
    return path


@torch.no_grad()
@pytest.mark.parametrize("how", [None, *WAYS])
def test_every_way_to_another_size_is_the_same(how: PositionResize | None, folder: Path) -> None:
    """On the fly, by `set_image_size` and on loading; `model.position_resize` overrides the library's."""
    whole = create_model(pretrained=str(folder), position_resize=how).eval()
    loaded = load_model(ModelConfig(pretrained=str(folder), position_resize=how, image_size=(48, 16)))
    assert whole.config.position_resize == loaded.model.config.position_resize == (how or "bicubic")  # type: ignore[union-attr]
    assert loaded.report is not None
    assert f"positions.grid 4×4 → 6×2 ({how or 'bicubic'})" in loaded.report.summary()
    images = torch.randn(2, 3, 48, 16)
    on_the_fly = whole(images)
    torch.testing.assert_close(loaded.model.eval()(images), on_the_fly)
    whole.set_image_size((48, 16))
    torch.testing.assert_close(whole(images), on_the_fly)


def test_a_saved_configuration_keeps_it(folder: Path) -> None:
    config = create_model(pretrained=str(folder)).config
    content = config_to_dict(config)
    assert content["position_resize"] == "bicubic"
    assert config_from_dict(content) == config


def test_a_model_of_ours_keeps_it_under_a_name(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "resized_models.py").write_text(
        f"from vit.hub import create_model\ndef build():\n    return create_model(pretrained={str(folder)!r})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = create_model(pretrained=str(folder)).config
    assert isinstance(config, ViTConfig)
    sizes = {
        "width": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "image_size": config.image_size,
    }
    options = sizes | {"patch_size": config.patch_size, "num_classes": 0}
    model = create_model("vit_small_patch14_dinov2", pretrained="resized_models:build", **options)
    assert model.config.position_resize == "bicubic"  # type: ignore[union-attr]


def test_conversion_says_where_the_ways_differ(folder: Path) -> None:
    model = create_model(pretrained=str(folder))
    assert convert_model(model, "hf").note == ""
    note = "at other image sizes positions are resized bicubic_antialiased there and bicubic here"
    assert convert_model(model, "timm").note == note
    assert convert_model(build_model(replace(PLAIN, positions="none", image_size=(28, 28))), "timm").note == ""


def test_a_way_without_effect_is_refused() -> None:
    rule = r"model\.position_resize: 'bicubic' is not valid: it has no effect on model\.positions 'rope'"
    with pytest.raises(ValueError, match=rule):
        ViTConfig(positions="rope", position_resize="bicubic")
    with pytest.raises(ValueError, match=r"no effect without learned or relative model\.positions"):
        create_model("vit", positions="rope", position_resize="bicubic_antialiased")
    with pytest.raises(
        ValueError, match=r"model\.position_resize: 'bicubic' is not valid: it has no effect on resnet18"
    ):
        create_model("resnet18", position_resize="bicubic")
    with pytest.raises(ValueError, match=r"model\.position_resize: 'nearest'"):
        create_model("vit", position_resize="nearest")
