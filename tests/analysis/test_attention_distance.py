"""Distances against closed forms: uniform attention, attention to oneself, attention to the next patch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from vit import create_model
from vit.analysis import mean_attention_distance
from vit.analysis.attention_distance import PREFIXES, Prefix, distance_from_profile, uniform_distance
from vit.analysis.capture import AttentionLayer, capture_attention
from vit.analysis.profile import attention_profile, profile_of_layer
from vit.analysis.tokens import TokenLayout, token_layout


def model_of(image_size: object = 224, **options: object) -> Any:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"num_classes": 2, "image_size": image_size, "width": 12, "depth": 2, "num_heads": 3}
    return create_model("vit_tiny_patch16_224", **(settings | options)).eval()


def uniform(model: Any) -> Any:
    """Queries of zeros: every key is as good as any."""
    for block in model.blocks:
        block.attention.qkv.weight.data[:12] = 0
        block.attention.qkv.bias.data[:12] = 0
    return model


def layer_of(scores: Tensor) -> AttentionLayer:
    """One head whose scores are given, n m, as a bias on zeros."""
    n = scores.shape[0]
    zeros = torch.zeros(1, 1, n, 4)
    return AttentionLayer(
        name="made",
        index=0,
        query=zeros,
        key=zeros,
        value=zeros,
        mask=None,
        bias=scores[None, None],
        scale=1.0,
        input=zeros,
        output=zeros,
        difference=0.0,
        finish=lambda attended, rows: attended,  # noqa: ARG005
    )


def layout_of(grid: tuple[int, int], num_prefix: int = 0) -> TokenLayout:
    size = (16 * grid[0], 16 * grid[1])
    return TokenLayout(
        image_size=size, patch_size=(16, 16), grid=grid, num_prefix=num_prefix, has_class_token=num_prefix > 0
    )


IMAGES = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))


def test_uniform_attention_on_fourteen_by_fourteen_patches() -> None:
    model = uniform(model_of())
    profile = attention_profile(model, IMAGES)
    expected: dict[Prefix, float] = {"renormalised": 116.4922, "raw": 115.9009, "kept": 115.9009 * 196 / 197}
    for prefix, pixels in expected.items():
        found = distance_from_profile(profile, prefix=prefix)
        torch.testing.assert_close(found.pixels, torch.full((2, 3), pixels).double(), rtol=0, atol=6e-5)
        assert found.uniform == pytest.approx(pixels, abs=6e-5)
        assert found.convention == PREFIXES[prefix]
    without_self = distance_from_profile(profile, without_self=True)
    torch.testing.assert_close(without_self.pixels, torch.full((2, 3), 117.0896).double(), rtol=0, atol=6e-5)
    assert without_self.uniform == pytest.approx(117.0896, abs=6e-5)
    torch.testing.assert_close(profile.mean("class_mass"), torch.full((2, 3), 1 / 197).double())
    torch.testing.assert_close(profile.mean("self_mass"), torch.full((2, 3), 1 / 197).double())
    torch.testing.assert_close(profile.mean("entropy"), torch.full((2, 3), math.log(197)).double())


def test_attention_to_oneself_and_to_the_next_patch() -> None:
    grid = layout_of((2, 3), num_prefix=1)
    own = profile_of_layer(layer_of(1e4 * torch.eye(7)), grid)
    assert own[:, 0, 0].tolist() == [0, 0, 0, 0, 0, 0, 1]
    shift = 1e4 * torch.eye(7).roll(1, dims=1)  # each to the next; the last patch to the class token
    next_one = profile_of_layer(layer_of(shift), grid)[:, 0, 0]
    steps = [16, 16, math.hypot(16, 32), 16, 16, 0]
    torch.testing.assert_close(next_one[0], torch.tensor(sum(steps) / 6))
    torch.testing.assert_close(next_one[4], torch.tensor(1 / 6))


def test_raw_is_renormalised_times_what_the_patches_get() -> None:
    torch.manual_seed(2)
    grid = layout_of((3, 5), num_prefix=3)
    values = profile_of_layer(layer_of(torch.randn(18, 18)), grid)[:, 0, 0]
    weights = torch.randn(18, 18, generator=torch.Generator().manual_seed(2)).softmax(dim=1)
    assert values.isfinite().all()
    # of every query by itself
    from vit.attention.statistics import attention_statistics

    layer = layer_of(weights.log())
    found = attention_statistics(
        layer.query, layer.key, coordinates=grid.coordinates(), key_groups=grid.groups(), bias=layer.bias, scale=1.0
    )
    patches = slice(3, None)
    share = 1 - found.mass["prefix"][:, :, patches]
    assert found.distance is not None
    raw, renormalised = found.distance[:, :, patches], found.renormalised_distance()[:, :, patches]
    torch.testing.assert_close(raw, renormalised * share)
    table = torch.cdist(grid.coordinates()[3:], grid.coordinates()[3:])
    torch.testing.assert_close(raw[0, 0], (weights[3:, 3:] * table).sum(dim=1))


def test_a_grid_that_is_not_square_and_its_units() -> None:
    model = uniform(model_of((32, 64), patch_size=8, num_registers=2))
    found = mean_attention_distance(model, torch.randn(1, 3, 32, 64))
    places = torch.cartesian_prod(torch.arange(4.0), torch.arange(8.0)) * 8
    mean = torch.cdist(places, places).double().mean()
    torch.testing.assert_close(found.pixels, mean.expand(2, 3), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.patches, found.pixels / 8)
    torch.testing.assert_close(found.fraction, found.pixels / math.hypot(32, 64))
    assert found.uniform == pytest.approx(float(mean), rel=1e-6)
    assert found.layout.num_prefix == 3
    assert found.margin.isnan().all()
    assert found.numbers()["grid"] == [4, 8]


def test_patches_that_are_not_square() -> None:
    layout = TokenLayout(image_size=(32, 64), patch_size=(8, 32), grid=(4, 2), num_prefix=0, has_class_token=False)
    places = torch.cartesian_prod(torch.arange(4.0) * 8, torch.arange(2.0) * 32)
    assert uniform_distance(layout) == pytest.approx(float(torch.cdist(places, places).mean()), rel=1e-6)
    assert layout.coordinates()[0].tolist() == [4, 16]


def test_the_interval_and_the_merging_of_batches_and_processes() -> None:
    model = model_of(32, patch_size=8)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    images = torch.randn(5, 3, 32, 32)
    whole = mean_attention_distance(model, images)
    each = torch.stack([mean_attention_distance(model, image[None]).pixels for image in images])
    torch.testing.assert_close(whole.pixels, each.mean(dim=0))
    torch.testing.assert_close(whole.margin, each.std(dim=0) / math.sqrt(5) * 2.776445, rtol=1e-5, atol=1e-9)
    assert each.std(dim=0).min() > 1e-3
    in_batches = mean_attention_distance(model, iter(images.split(2)))
    torch.testing.assert_close(in_batches.pixels, whole.pixels)
    other = attention_profile(model, images[:3])
    parts = iter([torch.stack((other.sums, other.squares))[None], torch.tensor([3]), other.distances])
    merged = attention_profile(model, images[3:], gather=lambda mine: torch.cat((mine, next(parts))))
    assert merged.num_images == 5
    torch.testing.assert_close(distance_from_profile(merged).pixels, whole.pixels)
    torch.testing.assert_close(distance_from_profile(merged).margin, whole.margin, rtol=1e-5, atol=1e-9)
    assert merged.distances.shape == (5, 3, 2, 3)
    torch.testing.assert_close(whole.per_image.double(), each, rtol=1e-6, atol=0)


def test_sorted_heads_are_resampled_and_sorted_anew() -> None:
    """Two heads that are as near on average: the nearer of the two, whichever it is, has less than their mean."""
    torch.manual_seed(0)
    found = mean_attention_distance(model_of(32, patch_size=8, depth=1), torch.randn(400, 3, 32, 32))
    per_image = torch.stack((torch.randn(400), torch.randn(400), torch.randn(400) + 9), dim=1)[:, None].float()
    found = replace(found, per_image=per_image - per_image.mean(dim=0) + torch.tensor([5, 5, 9]))
    found = replace(found, pixels=found.per_image.double().mean(dim=0))
    heads, (low, high) = found.sorted_heads()
    assert heads[0].tolist() == pytest.approx([5, 5, 9], abs=1e-5)
    apart = 1.96 / math.sqrt(400)  # half of the interval of a head's own mean
    assert float(heads[0, 2] - low[0, 2]) == pytest.approx(apart, rel=0.1)
    assert float(high[0, 2] - heads[0, 2]) == pytest.approx(apart, rel=0.1)
    assert float(high[0, 0] - 5) < 0.6 * apart < 0.9 * apart < float(5 - low[0, 0])
    assert bool(replace(found, per_image=per_image[:1]).sorted_heads()[1].isnan().all())


def test_maps_give_the_same_numbers() -> None:
    model = model_of(32, patch_size=8, num_registers=1, positions="relative")
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    images = torch.randn(2, 3, 32, 32)
    maps: list[Tensor] = []
    with torch.no_grad():
        capture_attention(model, images, lambda layer: maps.append(layer.weights()))
    places = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)) * 8
    on_patches = torch.stack(maps)[:, :, :, 2:, 2:]  # l b h n m
    per_query = (on_patches * torch.cdist(places, places)).sum(-1) / on_patches.sum(-1)
    found = mean_attention_distance(model, images)
    torch.testing.assert_close(found.pixels, per_query.mean(dim=(1, 3)).double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        found.prefix_mass, (1 - on_patches.sum(-1)).mean(dim=(1, 3)).double(), rtol=1e-4, atol=1e-6
    )
    class_mass = torch.stack(maps)[:, :, :, 2:, 0].mean(dim=(1, 3)).double()
    torch.testing.assert_close(found.class_mass, class_mass, rtol=1e-4, atol=1e-6)


def test_users_errors() -> None:
    model = model_of(32, patch_size=8)
    with pytest.raises(ValueError, match="prefix: 'row' is not valid: it must be one of 'renormalised', 'raw', 'kept'"):
        mean_attention_distance(model, torch.zeros(1, 3, 32, 32), prefix="row")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without_self: True is not valid"):
        mean_attention_distance(model, torch.zeros(1, 3, 32, 32), prefix="raw", without_self=True)
    with pytest.raises(ValueError, match="images: none"):
        mean_attention_distance(model, [])
    with pytest.raises(ValueError, match="all must be of the first one's size"):
        mean_attention_distance(model, [torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 32, 40)])
    with pytest.raises(ValueError, match="its patches are not a plain grid"):
        token_layout(model, (32, 32), 18)


def test_where_the_patch_does_not_divide_the_image() -> None:
    import timm

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=100, depth=1, embed_dim=24, num_heads=2).eval()
    found = mean_attention_distance(model, torch.randn(1, 3, 100, 100))
    places = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0)) * 16
    assert found.layout.patch_size == (16, 16)
    assert found.uniform == pytest.approx(float(torch.cdist(places, places).mean()), rel=1e-6)  # 49.28
    assert found.layout.coordinates()[-1].tolist() == [88, 88]
    torch.testing.assert_close(found.fraction, found.pixels / math.hypot(96, 96))
