"""ResNets of timm and torchvision: the same logits and gradients, both directions, refusals by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn

from tests.weights.proof import Row, compare_names, filled, prove
from vit.cli import main
from vit.config import ModelConfig, ResNetConfig, ViTConfig
from vit.hub import open_model
from vit.libraries import UnsupportedArchitecture
from vit.libraries.resnets import build_timm, build_timm_v2, build_torchvision, config_of_timm
from vit.libraries.timm import config_by_name
from vit.libraries.torchvision import RESNETS
from vit.models import build_model, resolve, zoo
from vit.models.resnet import infer_config
from vit.weights.files import write_tensors
from vit.weights.layout import Layout, apply_rules, invert_rules
from vit.weights.resnet import NPZ, TIMM, TIMM_V2, TORCHVISION
from vit.weights.sources import open_source

BUILT_BELOW = 30_000_000
"""Parameters under which a model is built whole."""
FAST = ("resnet18", "resnet18d", "resnet26d", "resnext50_32x4d")
REFUSED = {
    "seresnet50": "the part SEModule",
    "resnetaa50": "a stem that pools",
    "resnetblur50": "the part BlurPool2d",
    "resnet50_gn": "the part GroupNorm",
    "resnet26t": "conv1.0.weight of the shape",
    "resnetrs50": "the part",
    "resnetv2_50": "the part BatchNormAct2d",
    "resnetv2_50d_gn": "the part DownsampleAvg",
    "resnet200": "stages of 3, 24, 36, 3 bottleneck blocks",
}


def examine(name: str, theirs: nn.Module, layout: Layout) -> Row:
    """The model built for real where it is small, else its names and shapes alone."""
    config = infer_config(theirs.state_dict())
    if sum(parameter.numel() for parameter in theirs.parameters()) > BUILT_BELOW:
        return compare_names(layout, name, config, theirs.state_dict())
    return prove(layout, name, config, filled(theirs).state_dict())


def examine_timm(name: str) -> Row:
    with torch.device("meta"):
        theirs = timm.create_model(name)
    config = config_of_timm(theirs, name)
    return examine(name, theirs, TIMM if config.stem == "deep" or config.shortcut == "average" else TORCHVISION)


def examine_torchvision(name: str) -> Row:
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name)
    return examine(name, theirs, TORCHVISION)


def check(row: Row) -> None:
    assert row.loaded == row.present
    assert row.difference is None or row.difference < 1e-5, row
    assert row.exact is not False


@pytest.mark.parametrize("name", FAST)
def test_a_few_of_timms(name: str) -> None:
    check(examine_timm(name))


def computed_names() -> Iterator[str]:
    """timm's ResNets of the first version that we compute."""
    for name in timm.list_models(["resnet*", "resnext*", "wide_resnet*"]):
        try:
            config = config_by_name(name)
        except UnsupportedArchitecture:  # then timm computes it
            continue
        if isinstance(config, ResNetConfig) and config.version == 1:
            yield name


@pytest.mark.slow
def test_every_resnet_of_timm_that_is_computed() -> None:
    names = list(computed_names())
    assert {"resnet152d", "resnext50d_32x4d", "wide_resnet101_2"} <= set(names)
    for name in names:
        check(examine_timm(name))


@pytest.mark.parametrize(
    "name", [name if name == "resnet34" else pytest.param(name, marks=pytest.mark.slow) for name in RESNETS]
)
def test_torchvisions(name: str) -> None:
    check(examine_torchvision(name))


def test_every_name_shared_with_a_library_is_its_architecture() -> None:
    for name in zoo.RESNETS:
        config = resolve(ModelConfig(name=name), num_classes=1000)
        if timm.is_model(name):
            assert config == config_by_name(name)
        if name in RESNETS:
            with torch.device("meta"):
                assert config == infer_config(torchvision.models.get_model(name).state_dict())


@pytest.mark.parametrize(("name", "part"), REFUSED.items())
def test_unsupported_parts_are_named(name: str, part: str) -> None:
    with pytest.raises(UnsupportedArchitecture, match=part):
        config_by_name(name)


BIT = {name: options for name, options in zoo.RESNETS.items() if name.endswith("_bit")}


def examine_bit(name: str, layout: Layout) -> Row:
    config = resolve(ModelConfig(name=name), num_classes=7)
    theirs = build_on_meta(config)
    tensors = apply_rules(TIMM_V2, filled(theirs).state_dict(), config).tensors
    return prove(layout, name, config, invert_rules(layout, tensors, config).tensors)


def rows() -> Iterator[Row]:
    """Every ResNet, for the table of layouts."""
    yield from map(examine_timm, computed_names())
    yield from map(examine_torchvision, RESNETS)
    for name, options in BIT.items():
        config = resolve(ModelConfig(name=name), num_classes=7)
        yield compare_names(TIMM_V2, name, config, build_on_meta(config).state_dict())
        if options["depth"] == 50 and options["width"] == 64:
            yield from (examine_bit(name, layout) for layout in (TIMM_V2, NPZ))


@pytest.mark.parametrize("layout", [TIMM_V2, NPZ], ids=lambda layout: layout.name)
def test_bits_logits(layout: Layout) -> None:
    check(examine_bit("resnetv2_50x1_bit", layout))


@pytest.mark.parametrize("name", BIT)
def test_bits_shapes(name: str) -> None:
    """Google's names are those that timm's reader asks for."""
    config = resolve(ModelConfig(name=name), num_classes=7)
    with torch.device("meta"):
        ours = build_model(config).state_dict()
    check(compare_names(TIMM_V2, name, config, build_on_meta(config).state_dict()))
    named = invert_rules(NPZ, ours, config)
    assert named.unexpected == []
    assert infer_config(apply_rules(NPZ, named.tensors, config).tensors) == config


def build_on_meta(config: ViTConfig | ResNetConfig) -> nn.Module:
    assert isinstance(config, ResNetConfig)
    with torch.device("meta"):
        return build_timm_v2(config)


@pytest.mark.parametrize(("layout", "file"), [(TIMM_V2, "bit.safetensors"), (NPZ, "bit.npz")])
def test_a_file_of_bits_tells_its_architecture_and_classes(layout: Layout, file: str, tmp_path: Path) -> None:
    config = ResNetConfig(depth=26, width=32, num_classes=5, version=2)
    model = build_model(config)
    write_tensors(tmp_path / file, invert_rules(layout, model.state_dict(), config).tensors)
    assert open_source(str(tmp_path / file)).num_classes == 5
    opened = open_model(tmp_path / file).model
    assert opened.config == config
    assert all(torch.equal(tensor, opened.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_bits_gradients_in_training() -> None:
    config = ResNetConfig(depth=26, width=32, num_classes=5, version=2)
    theirs = filled(build_timm_v2(config)).double().train()
    ours = build_model(config).double().train()
    ours.load_state_dict(apply_rules(TIMM_V2, theirs.state_dict(), config).tensors)
    images = torch.randn(2, 3, 43, 57, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for model in (ours, theirs):
        (model(images) * torch.arange(5)).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    named = invert_rules(TIMM_V2, gradients, config).tensors
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(named[name], parameter.grad, rtol=1e-6, atol=1e-8, msg=name)
    once = dict(gradients)
    ours.zero_grad()
    ours.set_grad_checkpointing()
    (ours(images) * torch.arange(5)).square().sum().backward()
    for name, gradient in once.items():
        torch.testing.assert_close(ours.get_parameter(name).grad, gradient, msg=name)


def test_bits_maps_are_timms() -> None:
    config = ResNetConfig(depth=26, width=32, num_classes=5, version=2)
    theirs: Any = filled(build_timm_v2(config)).double()
    ours = build_model(config).double().eval()
    ours.load_state_dict(apply_rules(TIMM_V2, theirs.state_dict(), config).tensors)
    images = torch.randn(1, 3, 64, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for norm in (False, True):
        features, maps = ours.forward_intermediates(images, norm=norm)
        expected_features, expected_maps = theirs.forward_intermediates(images, norm=norm)
        torch.testing.assert_close([features, *maps], [expected_features, *expected_maps])


SMALL: dict[str, tuple[Any, ResNetConfig]] = {
    "basic": (build_torchvision, ResNetConfig(depth=18, num_classes=5)),
    "basic, D": (build_timm, ResNetConfig(depth=18, width=8, stem="deep", shortcut="average", num_classes=5)),
    "bottleneck, D": (build_timm, ResNetConfig(depth=26, width=8, stem="deep", shortcut="average", num_classes=5)),
    "grouped": (build_torchvision, ResNetConfig(depth=26, groups=4, group_width=8, num_classes=5)),
    "wide": (build_timm, ResNetConfig(depth=26, width=8, group_width=16, stem="deep", num_classes=5)),
}


@pytest.mark.parametrize("case", SMALL)
def test_gradients_in_training(case: str) -> None:
    """In float64, so that what BatchNorm does to rounding on few images does not hide a difference."""
    build, config = SMALL[case]
    theirs = filled(build(config)).double().train()
    ours = build_model(config).double().train()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(4, 3, 43, 57, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for model in (ours, theirs):
        (model(images) * torch.arange(5)).square().sum().backward()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad, rtol=1e-6, atol=1e-8, msg=name)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), buffer, msg=name)


def test_what_a_library_does_not_have_is_said() -> None:
    for build, options, rule in (
        (build_torchvision, {"stem": "deep"}, "torchvision has no ResNet with model.stem 'deep'"),
        (build_torchvision, {"depth": 18, "width": 8}, "torchvision has no ResNet with model.width 8; it has 64"),
        (build_timm, {"shortcut": "padding"}, "timm has no ResNet with model.shortcut 'padding'"),
        (build_timm, {"depth": 20}, "model.depth 20: it has three stages"),
        (build_timm, {"in_channels": 1}, "3 channels, not 1"),
    ):
        with pytest.raises(ValueError, match=rule):
            build(ResNetConfig(**options))


@pytest.mark.parametrize("target", ["timm", "torchvision"])
def test_convert_and_back(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.safetensors"
    assert main(["convert", "resnet18", "--to", target, "--output", str(path), "--verify"]) == 0
    said = capsys.readouterr().out
    assert f"{target} ResNet: largest relative difference of logits" in said
    assert "round trip: bitwise" in said
    model = open_model(path).model
    assert model.state_dict()["bn1.running_var"].ne(1).all()
    assert main(["convert", str(path), "--to", "timm", "--verify"]) == 0
    assert "source (torchvision ResNet): largest relative difference" in capsys.readouterr().out


def test_convert_names_the_libraries_that_have_a_resnet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "resnet18", "--to", "hf", "--verify"]) == 2
    assert "--to: 'hf' is not valid: a ResNet is written for timm or torchvision" in capsys.readouterr().err
    assert main(["convert", "resnetv2_50x1_bit", "--to", "torchvision", "--verify"]) == 2
    assert "a ResNetV2 is written for timm or npz" in capsys.readouterr().err


def test_timms_model_is_computed_by_ours() -> None:
    opened = open_model("timm:resnet18d", random_weights=True, num_classes=3)
    assert (opened.implementation, type(opened.model).__name__) == ("vit", "ResNet")
    assert open_model("timm:resnet18d.ra4_e3600_r224_in1k", random_weights=True).implementation == "vit"
