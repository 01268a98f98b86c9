"""Names: their models (timm's parameter counts), overrides and refusals."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import timm
import torch
from torch import nn

from vit.config import ModelConfig, ViTConfig
from vit.hub import create_model
from vit.libraries.timm import config_by_name
from vit.models import build_model, list_models, resolve
from vit.models.zoo import RESNETS


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def build_on_meta(name: str, depth: int | None = None) -> Any:
    with torch.device("meta"):
        return build_model(resolve(ModelConfig(name=name, depth=depth), num_classes=1000))


SHARED = sorted(set(list_models()) & set(timm.list_models()))


@pytest.mark.parametrize("name", SHARED)
def test_as_many_parameters_as_timm_in_one_block(name: str) -> None:
    depth = None if name in RESNETS else 1
    with torch.device("meta"):
        theirs = timm.create_model(name, num_classes=1000, **({} if depth is None else {"depth": depth}))
    assert count(build_on_meta(name, depth)) == count(theirs)


@pytest.mark.parametrize("name", [name for name in SHARED if name not in RESNETS])
def test_a_name_is_timms_architecture(name: str) -> None:
    """Also what no parameter shows: norms' epsilon and place, activations. The initialization is our own choice."""
    ours, theirs = asdict(resolve(ModelConfig(name=name), num_classes=1000)), asdict(config_by_name(name))
    free = {"init", "position_resize", "num_classes"}
    if not ours["class_token"]:
        free.add("positions_on_prefix")  # of registers, which have none in either
    assert {key: value for key, value in ours.items() if key not in free} == {
        key: value for key, value in theirs.items() if key not in free
    }


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHARED)
def test_as_many_parameters_as_timm(name: Any) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name, num_classes=1000)
    assert count(build_on_meta(name)) == count(theirs)


def test_base_16() -> None:
    model = build_on_meta("vit_base_patch16_224")
    assert count(model) == 86_567_656
    assert model.patch_embedding(torch.empty(1, 3, 224, 224, device="meta")).shape == (1, 196, 768)


@pytest.mark.parametrize("size", ["tiny", "small", "base", "large", "huge"])
def test_every_size_and_patch(size: str) -> None:
    depth, width = {"tiny": (12, 192), "small": (12, 384), "base": (12, 768), "large": (24, 1024), "huge": (32, 1280)}[
        size
    ]
    for patch in (8, 14, 16, 32):
        model = build_on_meta(f"vit_{size}_patch{patch}_224", None if patch == 16 else 2)
        assert model.config.width == width
        assert len(model.blocks) == (depth if patch == 16 else 2)
        assert model.grid_size == (224 // patch, 224 // patch)
        assert model(torch.empty(1, 3, 224, 224, device="meta")).shape == (1, 1000)


def test_any_image_size_in_a_name() -> None:
    assert resolve(ModelConfig(name="vit_tiny_patch16_96")).image_size == (96, 96)
    with pytest.raises(ValueError, match="the nearest image sizes are 96 or 112"):
        resolve(ModelConfig(name="vit_tiny_patch16_100"))


def vit_config(config: ModelConfig) -> ViTConfig:
    found = resolve(config)
    assert isinstance(found, ViTConfig)
    return found


def test_fields_override_the_name() -> None:
    config = vit_config(
        ModelConfig(name="vit_tiny_patch16_224", image_size=(32, 64), patch_size=4, width=64, num_heads=4, depth=2)
    )
    assert (config.image_size, config.patch_size, config.width, config.num_heads, config.depth) == (
        (32, 64),
        (4, 4),
        64,
        4,
        2,
    )
    assert resolve(ModelConfig(name="resnet18_cifar", width=16, image_size=32)).width == 16
    assert vit_config(ModelConfig(name="deit3_small_patch16_224", positions_on_prefix=True)).positions_on_prefix


def test_the_initialisation_depends_on_the_width() -> None:
    assert vit_config(ModelConfig(name="vit")).init == "xavier"
    assert vit_config(ModelConfig(name="vit_base_patch16_224")).init == "normal"
    assert vit_config(ModelConfig(name="vit_base_patch16_224", width=48)).init == "xavier"
    assert vit_config(ModelConfig(name="vit", init="normal")).init == "normal"


def test_classes() -> None:
    assert resolve(ModelConfig(name="vit"), 7).num_classes == 7
    assert resolve(ModelConfig(name="vit", num_classes=7)).num_classes == 7
    assert resolve(ModelConfig(name="resnet18"), 7).num_classes == 7
    with pytest.raises(ValueError, match=r"model.num_classes: 3 is not valid: the data has 7 classes"):
        resolve(ModelConfig(name="vit", num_classes=3), 7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "vit_bse_patch16_224"}, "did you mean 'vit_base_patch16_224'"),
        ({"name": "vit_base_patch12_224"}, "model.name: 'vit_base_patch12_224' is not valid"),
        ({"name": "resnet19"}, "did you mean 'resnet1"),
        ({"name": "resnet18", "num_heads": 3}, "model.num_heads: 3 is not valid: it has no effect on resnet18"),
        ({"name": "resnet18", "depth": 34}, "model.depth: 34 is not valid"),
        ({"name": "resnet18", "stem": "patch"}, "model.stem: 'patch' is not valid"),
        ({"name": "resnet20", "group_width": 32}, "model.group_width: 32 is not valid: only bottlenecks"),
        ({"name": "vit", "shortcut": "padding"}, "model.shortcut: 'padding' is not valid: it has no effect on vit"),
        ({"name": "vit", "stem": "cifar"}, "model.stem: 'cifar' is not valid"),
        ({"name": "vit", "positions": "rope", "positions_on_prefix": True}, "model.positions_on_prefix: True"),
        ({"name": "vit", "num_heads": 5}, r"model.num_heads: 5.*nearest that does is 4"),
        ({"name": "vit", "pooling": "cls", "class_token": False}, "model.class_token"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(ModelConfig(**options))


def test_list() -> None:
    names = list_models()
    assert names == sorted(set(names))
    assert {"vit", "vit_base_patch16_224", "deit_tiny_distilled_patch16_224", "resnet50_cifar"} <= set(names)
    sizes = ("base", "large", "small")
    assert list_models("*14_dinov2") == [f"vit_{size}_patch14_dinov2" for size in sizes]
    assert list_models("dinov2") == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("vit_base", "vit_base_patch16_224"),
        ("vit_large_patch16", "vit_large_patch16_224"),
        ("vit_b_32", "vit_base_patch32_224"),
        ("ViT-L/14", "vit_large_patch14_224"),
        ("google/vit-base-patch16-224", "vit_base_patch16_224"),
        ("vit_tinny_patch16_224", "vit_tiny_patch16_224"),
        ("vit_base_patch12_224", "vit_base_patch16_224"),
        ("dinov2", "vit_base_patch14_dinov2"),
        ("dinov2_vits14", "vit_small_patch14_dinov2"),
        ("dinov2_vitb14_reg", "vit_base_patch14_reg4_dinov2"),
        ("deit_small", "deit_small_patch16_224"),
        ("openai/clip-vit-base-patch32", "vit_base_patch32_clip_224"),
        ("resnet-50", "resnet50"),
        ("resnet18_cifr", "resnet18_cifar"),
    ],
)
def test_the_model_that_a_name_means(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{meant}'"):
        create_model(name)


def test_a_name_without_any_known_word_is_shown_the_list() -> None:
    with pytest.raises(ValueError, match=r"'banana' is not valid: choose one of vit.list_models\(\), such as"):
        create_model("banana")
