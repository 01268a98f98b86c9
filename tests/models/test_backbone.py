"""Models as backbones: timm's methods with timm's numbers, other heads, sizes, channels; copies, hooks, compiling."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tests.models.test_against_timm import CASES, pair
from vit.config import ResNetConfig, ViTConfig
from vit.hub import create_model
from vit.models import ResNet, VisionTransformer
from vit.models.backbone import select_blocks
from vit.weights.loader import load_weights

VIT = ViTConfig(image_size=(24, 32), patch_size=(8, 8), width=48, depth=3, num_heads=3, num_classes=7)
RESNET = ResNetConfig(depth=18, width=8, num_classes=7, image_size=(32, 32))
CONFIGS: dict[str, ViTConfig | ResNetConfig] = {
    "vit": VIT,
    "resnet": RESNET,
    "distilled": replace(VIT, distillation_token=True),
}


def build(config: ViTConfig | ResNetConfig) -> VisionTransformer | ResNet:
    torch.manual_seed(0)
    return VisionTransformer(config) if isinstance(config, ViTConfig) else ResNet(config)


def perturbed(config: ViTConfig | ResNetConfig) -> VisionTransformer | ResNet:
    """A model in evaluation mode with random parameters."""
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def images(size: tuple[int, int] = (24, 32), channels: int = 3) -> Tensor:
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1))


# ------------------------------------------------------------------ intermediates


def gradients(model: nn.Module, tensors: Sequence[Tensor], name: str) -> Tensor:
    model.zero_grad()
    torch.stack([tensor.square().sum() for tensor in tensors]).sum().backward()
    gradient = model.get_parameter(name).grad
    assert gradient is not None
    return gradient


def flat(found: Any) -> list[Tensor]:
    """The tensors in nested lists and pairs."""
    return [found] if isinstance(found, Tensor) else [tensor for part in found for tensor in flat(part)]


@pytest.mark.parametrize("case", ["plain", "registers", "map", "gap", "distilled"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"indices": 1},
        {"indices": [-2], "norm": True},
        {"indices": [1, 0], "output_fmt": "NLC"},
        {"indices": 2, "return_prefix_tokens": True, "intermediates_only": True},
        {"indices": [0], "intermediates_only": True, "norm": True, "output_fmt": "NLC", "return_prefix_tokens": True},
    ],
)
def test_intermediates_and_their_gradients_are_timms(case: str, options: dict[str, Any]) -> None:
    ours, theirs, _ = pair(*CASES[case])
    found, expected = (flat(model.forward_intermediates(images(), **options)) for model in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    mine = gradients(ours, found, "embedding.projection.weight")
    torch.testing.assert_close(mine, gradients(theirs, expected, "patch_embed.proj.weight"), atol=1e-1, rtol=1e-3)


@pytest.mark.parametrize("n", [1, 2, [0], [0, -1]])
@pytest.mark.parametrize("reshape", [False, True])
def test_intermediate_layers_are_timms(n: int | list[int], reshape: bool) -> None:
    ours, theirs, _ = pair(*CASES["registers"])
    for options in ({}, {"return_prefix_tokens": True, "norm": True}):
        found, expected = (m.get_intermediate_layers(images(), n, reshape, **options) for m in (ours, theirs))
        assert len(found) == len(expected)
        torch.testing.assert_close(flat(found), flat(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("indices", [None, 2, [0, -1]])
def test_a_resnets_maps_are_timms(indices: int | list[int] | None) -> None:
    theirs = timm.create_model("resnet18", num_classes=7).eval()
    ours = ResNet(ResNetConfig(depth=18, num_classes=7)).eval()
    ours.load_state_dict(theirs.state_dict())
    pictures = images((64, 32))
    found, expected = (flat(model.forward_intermediates(pictures, indices)) for model in (ours, theirs))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    mine = gradients(ours, found, "conv1.weight")
    torch.testing.assert_close(mine, gradients(theirs, expected, "conv1.weight"), atol=1e-2, rtol=1e-3)
    maps = ours.get_intermediate_layers(pictures, [0, 4], reshape=True)
    assert [tuple(each.shape) for each in flat(maps)] == [(2, 64, 32, 16), (2, 512, 2, 1)]
    for tokens, each in zip(ours.get_intermediate_layers(pictures, [0, 4]), maps, strict=True):
        assert isinstance(each, Tensor)
        torch.testing.assert_close(tokens, each.flatten(2).mT)
    with pytest.raises(ValueError, match="output_fmt: 'NHWC' is not valid: 'NCHW' or 'NLC'"):
        ours.forward_intermediates(pictures, output_fmt="NHWC")  # type: ignore[arg-type]


def test_a_block_after_the_last_one_chosen_is_not_computed() -> None:
    model = perturbed(VIT)
    assert isinstance(model, VisionTransformer)
    model.blocks[2].register_forward_hook(lambda *_: pytest.fail("it was computed"))
    model.forward_intermediates(images(), [0, 1], intermediates_only=True)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "resnet18"])
def test_widths_and_classes_have_timms_names(name: str) -> None:
    ours, theirs = create_model(name, num_classes=7), timm.create_model(name, num_classes=7)
    assert (ours.num_features, ours.num_classes) == (theirs.num_features, theirs.num_classes)
    ours.reset_classifier(3)
    assert ours.num_classes == 3


@pytest.mark.parametrize("indices", [0, 4, [3], [-4], []])
def test_an_index_out_of_range_is_refused(indices: int | list[int]) -> None:
    with pytest.raises(ValueError, match="indices: "):
        select_blocks(3, indices)


@pytest.mark.parametrize("indices", ["last", 1.5, [0, "a"], torch.tensor([0])])
def test_indices_that_are_no_numbers_are_refused(indices: Any) -> None:
    with pytest.raises(ValueError, match=r"indices: .* a number of last blocks, or a list of blocks"):
        select_blocks(3, indices)


def test_no_grid_of_dropped_patches() -> None:
    model = VisionTransformer(replace(VIT, patch_dropout_rate=0.5)).train()
    with pytest.raises(ValueError, match="patch dropout leaves no grid"):
        model.forward_intermediates(images())
    assert model.get_intermediate_layers(images())[0].shape == (2, 6, 48)  # type: ignore[union-attr]


# ------------------------------------------------------------------ heads and sizes


@pytest.mark.parametrize("name", CONFIGS)
def test_head_of_features_is_forward(name: str) -> None:
    model = perturbed(CONFIGS[name])
    features = model.forward_features(images())
    torch.testing.assert_close(model.forward_head(features), model(images()))
    torch.testing.assert_close(model.forward_head(features, pre_logits=True), model.pool(features))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_new_head_keeps_the_rest(name: str) -> None:
    model = perturbed(CONFIGS[name]).double()
    before = model.forward_features(images().double())
    model.reset_classifier(11)
    assert model(images().double()).shape == (2, 11)
    assert model.config.num_classes == 11
    assert model.forward_head(before).std() > 0
    torch.testing.assert_close(model.forward_features(images().double()), before)
    type(model)(model.config).load_state_dict(model.state_dict())  # type: ignore[arg-type]
    model.reset_classifier(0)
    assert model.head_names() == ()
    torch.testing.assert_close(model(images().double()), model.pool(before))


@pytest.mark.parametrize("positions", ["learned_1d", "learned_2d", "relative", "rope", "sincos_2d", "none"])
@pytest.mark.parametrize("size", [(32, 24), (48, 48), (24, 32)])
def test_another_image_size_as_loading_sets_it(positions: Any, size: tuple[int, int]) -> None:
    model = perturbed(replace(VIT, positions=positions))
    on_the_fly = model(images(size))
    loaded = VisionTransformer(replace(VIT, positions=positions, image_size=size)).eval()
    load_weights(loaded, model.state_dict(), "a model", source_grid=(3, 4))
    model.set_image_size(size)
    assert model.config.image_size == size
    assert model.grid_size == loaded.grid_size
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=0, atol=0)
    torch.testing.assert_close(model(images(size)), on_the_fly)


def test_a_size_that_the_patch_does_not_divide() -> None:
    model = build(VIT)
    with pytest.raises(ValueError, match=r"model\.image_size"):
        model.set_image_size(30)
    assert model.config == VIT
    resnet = build(RESNET)
    for each in (model, resnet):
        for size in ("a", (32,), 32.0, True):
            with pytest.raises(ValueError, match=r"image_size: .* a whole number or a list of 2 whole numbers"):
                each.set_image_size(size)  # type: ignore[arg-type]
        for classes in ("x", 2.5, True):
            with pytest.raises(ValueError, match=r"model\.num_classes: .* it must be a whole number"):
                each.reset_classifier(classes)  # type: ignore[arg-type]
    resnet.set_image_size(48)
    assert resnet.config.image_size == (48, 48)


# ------------------------------------------------------------------ channels


@pytest.mark.parametrize("channels", [1, 2, 4, 6])
@pytest.mark.parametrize("config", [VIT, replace(VIT, patch_size=(8, 8), stem="resnet"), RESNET])
def test_other_channels(config: ViTConfig | ResNetConfig, channels: int) -> None:
    colour = perturbed(config)
    other = build(replace(config, in_channels=channels)).eval()
    assert other(images(channels=channels)).shape == (2, 7)
    with pytest.raises(ValueError, match=f"it must be b {channels} H W"):
        other(images())
    report = load_weights(other, colour.state_dict(), "a colour model")
    assert set(report.actions.values()) - {"copied"} == {f"adapted to {channels} channels"}
    grey = images(channels=1)
    if channels in (1, 6):  # as many of each colour: the same logits for grey images
        torch.testing.assert_close(
            other(grey.expand(-1, channels, -1, -1)), colour(grey.expand(-1, 3, -1, -1)), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("channels", [1, 2, 4, 5])
def test_channels_adapt_by_timms_rule(channels: int) -> None:
    from timm.models import adapt_input_conv

    from vit.weights.loader import adapt_channels

    weight = torch.randn(5, 3, 4, 4)
    torch.testing.assert_close(adapt_channels(weight, channels, "w", "m"), adapt_input_conv(channels, weight))
    with pytest.raises(ValueError, match=r"model\.in_channels: 3 is not valid"):
        adapt_channels(torch.randn(5, 4, 2, 2), 3, "w", "m")


def test_three_channels_change_no_name() -> None:
    assert "embedding.projection.weight" in build(VIT).state_dict()
    names = build(VIT).state_dict().keys()
    assert names == build(replace(VIT, in_channels=5)).state_dict().keys()


# ------------------------------------------------------------------ what any module offers


@pytest.mark.parametrize("name", CONFIGS)
def test_copies_and_pickles_compute_the_same(name: str) -> None:
    model = perturbed(CONFIGS[name])
    expected = model(images())
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(images()), expected, rtol=0, atol=0)
        assert other.config == model.config
        assert all(a is not b for a, b in zip(other.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_state_dict_round_trips(name: str) -> None:
    model, other = perturbed(CONFIGS[name]), build(CONFIGS[name]).eval()
    assert not torch.equal(other(images()), model(images()))
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(images()), model(images()), rtol=0, atol=0)


def test_hooks_are_called_on_every_part() -> None:
    model = perturbed(VIT)
    seen: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: seen.append(name))
    model(images())
    unused = {"blocks"}  # a list computes nothing
    assert set(seen) >= {name for name, _ in model.named_modules()} - unused - {""}
    full: dict[str, Tensor] = {}
    model.blocks[-1].register_forward_hook(lambda _module, _args, output: full.update(tokens=output))  # type: ignore[union-attr,index]
    model(images())
    assert full["tokens"].shape == (2, 13, 48)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("method", ["forward", "forward_features", "forward_intermediates"])
def test_it_compiles_without_graph_breaks(name: str, method: str) -> None:
    model = perturbed(CONFIGS[name])
    compiled = torch.compile(getattr(model, method), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(flat(compiled(images())), flat(getattr(model, method)(images())), atol=1e-5, rtol=1e-5)


def test_images_that_grow_need_few_programs() -> None:
    """From the second size on the compiler leaves it open. A program for each ends with none, after eight."""
    torch.compiler.reset()
    counters.clear()
    config = ViTConfig(image_size=(32, 32), patch_size=(4, 4), width=16, depth=1, num_heads=2, num_classes=3)
    model = VisionTransformer(config)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for side in (8, 12, 16, 20, 24, 28, 32):
        model.zero_grad()
        compiled(torch.randn(2, 3, side, side)).sum().backward()
        assert model.positions.grid.grad.norm() > 0  # type: ignore[operator, union-attr]
    assert counters["stats"]["unique_graphs"] <= 4  # the first size, one side open, both, and no resize


def test_checkpointing_recomputes_the_blocks_and_changes_nothing() -> None:
    model = perturbed(VIT).train()
    expected = gradients(model, [model(images())], "embedding.projection.weight").clone()
    calls: list[int] = []
    model.blocks[0].norm1.register_forward_hook(lambda *_: calls.append(1))  # type: ignore[union-attr,index]
    for enable, count in ((True, 2), (False, 1)):
        calls.clear()
        model.set_grad_checkpointing(enable)
        torch.testing.assert_close(gradients(model, [model(images())], "embedding.projection.weight"), expected)
        assert len(calls) == count
    with pytest.raises(ValueError, match="BatchNorm"):
        build(RESNET).set_grad_checkpointing()


def test_parameters_without_weight_decay() -> None:
    free = build(VIT).no_weight_decay()
    assert {"class_token", "positions.grid", "norm.weight", "head.bias"} <= free
    assert "blocks.0.feedforward.fc1.weight" not in free
