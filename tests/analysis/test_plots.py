"""Every result of an analysis draws itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import vit.analysis
from vit import create_model
from vit.analysis import (
    ablate_heads,
    attention_maps,
    attention_profile,
    effective_receptive_field,
    mean_attention_distance,
    patch_components,
    patch_filters,
    patch_similarity,
    position_similarity,
    probe_layers,
    relevance,
    representation_similarity,
    residual_streams,
    token_norms,
)
from vit.analysis.tokens import pictures_of
from vit.config import DataConfig, Preprocessing
from vit.data.images import open_test, open_training
from vit.data.loading import EvalLoader

IMAGES = torch.randn(8, 3, 24, 32, generator=torch.Generator().manual_seed(0))
PIXELS = torch.full((8, 3, 24, 32), 200, dtype=torch.uint8)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "image_size": (24, 32),
        "patch_size": 8,
        "width": 24,
        "depth": 2,
        "num_heads": 2,
        "num_classes": 3,
    }
    return create_model("vit_tiny_patch16_224", **sizes).eval()


def layer_probe() -> Any:
    data = DataConfig(name="fake", fake_images=60, fake_classes=3, workers=0)
    train, test = (
        EvalLoader(split, Preprocessing(image_size=(24, 32)), data)
        for split in (open_training(data)[0], open_test(data))
    )
    return probe_layers(model(), train, test, device=torch.device("cpu"))


def quantization_sensitivity() -> Any:
    vision_transformer: Any = model()
    return vit.analysis.quantization_sensitivity(
        vision_transformer, lambda each: each(IMAGES), torch.zeros(len(IMAGES)).long()
    )


def random_hits() -> torch.Tensor:
    return torch.rand(12) < 0.5


RESULTS: dict[str, Callable[[], Any]] = {
    "AttentionDistance": lambda: mean_attention_distance(model(), IMAGES),
    "AttentionMaps": lambda: attention_maps(model(), IMAGES),
    "AttentionProfile": lambda: attention_profile(model(), IMAGES),
    "HeadAblation": lambda: ablate_heads(model(), random_hits),
    "LayerProbe": layer_probe,
    "PatchComponents": lambda: patch_components(model(), IMAGES),
    "PatchFilters": lambda: patch_filters(model()),
    "PatchSimilarity": lambda: patch_similarity(model(), IMAGES),
    "PositionSimilarity": lambda: position_similarity(model()),
    "QuantizationSensitivity": quantization_sensitivity,
    "ReceptiveField": lambda: effective_receptive_field(model(), [IMAGES]),
    "Relevance": lambda: relevance(model(), IMAGES),
    "RepresentationSimilarity": lambda: representation_similarity(model(), model(), [(IMAGES, IMAGES)]),
    "ResidualStreams": lambda: residual_streams(model(), [IMAGES]),
    "TokenNorms": lambda: token_norms(model(), [IMAGES]),
}
"""By the name of the result's class."""


def test_every_exported_result_is_tried() -> None:
    exported = {name: getattr(vit.analysis, name) for name in vars(vit.analysis)["__all__"]}
    results = [name for name, each in exported.items() if is_dataclass(each) and hasattr(each, "numbers")]
    plotted = [name for name, each in exported.items() if hasattr(each, "plot")]
    assert set(results) <= set(plotted)
    assert sorted(plotted) == sorted(RESULTS)


def num_drawn(figure: Figure) -> int:
    panels = figure.get_axes()
    return sum(len(axes.images) + len(axes.lines) + len(axes.collections) for axes in panels)


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_draws_itself(name: str) -> None:
    result = RESULTS[name]()
    assert type(result).__name__ == name
    figure = result.plot()
    assert isinstance(figure, Figure)
    assert num_drawn(figure) > 0
    figure.draw_without_rendering()


def test_maps_lie_over_the_images_that_were_seen_or_are_given() -> None:
    maps = attention_maps(model(), IMAGES[:2], query=(1, 2))
    picture, _ = maps.plot(1).axes
    seen: Any = picture.images[0].get_array()
    assert seen.shape == (24, 32, 3)
    assert (seen.min(), seen.max()) == (0, 255)
    assert [patch.get_xy() for patch in picture.patches if isinstance(patch, Rectangle)] == [(15.5, 7.5)]
    picture, _ = maps.plot(pixels=PIXELS).axes
    assert (np.ma.asarray(picture.images[0].get_array()) == 200).all()
    others = {"relevance": relevance(model(), IMAGES[:2]).maps}
    titles = [axes.get_title() for axes in maps.plot_overlays(others).axes[:4]]
    assert titles == ["image", "last block", "rollout", "relevance"]


def test_heads_are_drawn_sorted_on_request() -> None:
    distance = mean_attention_distance(model(), IMAGES)
    lines = distance.plot(sort_heads=True).axes[0].lines
    assert np.asarray(lines[0].get_ydata()).tolist() == distance.pixels[0].sort().values.tolist()


def test_heads_are_drawn_against_other_quantities() -> None:
    ablation = ablate_heads(model(), random_hits)
    quantity = torch.rand(2, 2)
    panel = ablation.plot({"a quantity": quantity}).axes[1]
    assert panel.get_xlabel() == "a quantity"
    dots = panel.collections[-1].get_offsets()
    assert np.asarray(dots)[:, 0].tolist() == pytest.approx(quantity.flatten().tolist())


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_images_of_any_channels_have_pictures(channels: int) -> None:
    images = torch.randn(2, channels, 8, 6)
    pictures = pictures_of(images, None)
    assert pictures.shape == (2, 8, 6, 3)
    if channels < 3:
        assert torch.equal(pictures[..., 0], pictures[..., 2])
    with pytest.raises(ValueError, match="they must be uint8 b 3 H W"):
        pictures_of(images, torch.zeros(2, 4, 8, 6, dtype=torch.uint8))
