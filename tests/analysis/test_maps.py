"""Maps, rollout and relevance: closed forms first, then explicit attention, other libraries, pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from tests.analysis.models import hugging, own, timm_model, torchvision_model
from vit.analysis.capture import AttentionLayer, capture_attention
from vit.analysis.figures import FIGURES
from vit.analysis.maps import attention_maps, extend_rollout, relevance, rollout, rows_of_query, weights_gradient
from vit.analysis.targets import AnalysisTarget, ImageSet
from vit.attention.core import attention_weights
from vit.config import Preprocessing
from vit.figures.attention_maps import plot_attention_overlays, plot_head_maps
from vit.libraries.tokens import has_class_token


def test_rollout_of_uniform_attention_at_depth() -> None:
    tokens, depth = 5, 4
    uniform = torch.full((1, 2, tokens, tokens), 1 / tokens, dtype=torch.float64)
    found = rollout([uniform] * depth)[0]
    off = (1 - 0.5**depth) / tokens
    torch.testing.assert_close(found, torch.full_like(found, off) + 0.5**depth * torch.eye(tokens).double())


def test_rollout_by_hand_multiplies_later_layers_from_the_left() -> None:
    first = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    second = torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])
    # halves with the identity: [[1, 0], [.5, .5]] then [[.5, .5], [0, 1]]
    torch.testing.assert_close(rollout([first, second])[0], torch.tensor([[0.75, 0.25], [0.5, 0.5]]))


@given(st.integers(2, 7), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_rows_of_a_rollout_sum_to_one_and_images_do_not_mix(tokens: int, depth: int, images: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    maps = [torch.randn(images, 2, tokens, tokens, generator=generator).softmax(dim=-1) for _ in range(depth)]
    found = rollout(maps)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(images, tokens))
    alone = rollout([layer[-1:] for layer in maps])
    torch.testing.assert_close(found[-1:], alone)


def test_a_token_that_attends_to_nothing_stays_itself_and_no_layer_is_refused() -> None:
    weights = torch.tensor([[[[0.5, 0.5], [0.0, 0.0]]]])
    torch.testing.assert_close(extend_rollout(None, weights)[0], torch.tensor([[0.75, 0.25], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="at least one layer"):
        rollout([])


def test_the_rows_of_every_query() -> None:
    weights = torch.arange(49.0).reshape(1, 7, 7)  # one prefix token, a grid of 2 × 3
    assert rows_of_query(weights, "class", (2, 3))[0, 0] == 0
    assert rows_of_query(weights, (1, 2), (2, 3))[0].tolist() == list(range(42, 49))
    assert rows_of_query(weights, "patches", (2, 3))[0, 0] == (7 + 42) / 2


def test_uniform_heads_give_equal_maps_and_the_class_token_its_share() -> None:
    model = own(num_registers=2)
    block: Any
    for block in model.blocks:
        nn.init.zeros_(block.attention.qkv.weight[:16])  # queries
        nn.init.zeros_(block.attention.qkv.bias[:16])
    found = attention_maps(model, torch.randn(2, 3, 16, 24))
    assert found.query == "class"
    assert tuple(found.maps.shape) == (2, 2, 2, 2, 3)
    torch.testing.assert_close(found.maps, torch.full_like(found.maps, 1 / 9))
    torch.testing.assert_close(found.prefix_mass, torch.full((2, 2, 2), 3 / 9))
    torch.testing.assert_close(found.rollout, torch.full((2, 2, 3), (1 - 0.25) / 9))


def test_maps_are_rows_of_the_captured_weights() -> None:
    model, images = own(), torch.randn(2, 3, 16, 24)
    layers = []
    with torch.no_grad():
        capture_attention(model, images, lambda layer: layers.append(layer.weights()))
    torch.testing.assert_close(
        attention_maps(model, images, (1, 0)).maps[1], layers[1][:, :, 4, 1:].unflatten(2, (2, 3))
    )
    rolled = rollout(layers)
    torch.testing.assert_close(attention_maps(model, images).rollout, rolled[:, 0, 1:].unflatten(1, (2, 3)))


def test_queries_that_are_not_there_are_refused() -> None:
    model = own(pooling="gap", class_token=False)
    assert attention_maps(model, torch.randn(1, 3, 16, 24)).query == "patches"
    with pytest.raises(ValueError, match="query: 'class' is not valid: the model has no class token"):
        attention_maps(model, torch.randn(1, 3, 16, 24), "class")
    with pytest.raises(ValueError, match=r"query: \(2, 0\) is not valid: .* to \(1, 2\)"):
        attention_maps(model, torch.randn(1, 3, 16, 24), (2, 0))


def test_a_patch_may_be_given_as_a_list() -> None:
    model, images, as_list = own(), torch.randn(1, 3, 16, 24), [0, 2]
    found, wanted = (attention_maps(model, images, query) for query in (as_list, (0, 2)))  # type: ignore[arg-type]
    torch.testing.assert_close(found.maps, wanted.maps)
    assert found.query == (0, 2)
    for outside in ([0, 3], [-1, 0]):
        with pytest.raises(ValueError, match=r"query: \(.*\) is not valid: .* to \(1, 2\)"):
            attention_maps(model, images, outside)  # type: ignore[arg-type]


def explicit_relevance(model: nn.Module, images: Tensor, classes: Tensor) -> Tensor:
    """Chefer et al.'s rule with maps that autograd knows."""
    from unittest import mock

    maps = []

    def explicit(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Any = None, bias: Tensor | None = None, **_: Any
    ) -> Tensor:
        weights = attention_weights(query, key, mask=mask, bias=bias)
        weights.retain_grad()
        maps.append(weights)
        return weights @ value

    with mock.patch("vit.attention.multihead.attend", explicit):
        logits = model.eval()(images)
    logits.gather(1, classes[:, None]).sum().backward()
    spread = torch.eye(maps[0].shape[-1])[None]
    for weights in maps:
        assert weights.grad is not None
        step = (weights * weights.grad).clamp(min=0).mean(dim=1)
        spread = spread + step @ spread
    return (spread - torch.eye(spread.shape[-1])).detach()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"positions": "rope"},
        {"positions": "relative", "layer_scale": 0.5},
        {"pooling": "gap", "class_token": False},
        {"pooling": "gap"},
        {"pooling": "cls_gap"},
    ],
)
def test_relevance_is_that_of_explicit_maps(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model, images, classes = own(**options), torch.randn(2, 3, 16, 24), torch.tensor([1, 2])
    for parameter in model.parameters():  # heads and biases that start at zero say nothing
        nn.init.normal_(parameter, std=0.3)
    expected = explicit_relevance(model, images, classes)
    if model.class_token is None:
        rows = expected.mean(dim=1)
    else:  # the row of the class token where the head reads it, else the mean of the patches' rows
        rows = (expected[:, 1:].mean(dim=1) if model.config.pooling == "gap" else expected[:, 0])[:, 1:]
    expected = rows.unflatten(1, (2, 3))
    found = relevance(model, images, classes)
    assert float(expected.abs().max()) > 1e-4
    torch.testing.assert_close(found.maps, expected, rtol=1e-4, atol=1e-6)
    assert found.classes.tolist() == [1, 2]


def test_the_gradient_of_a_map_is_found_without_the_map() -> None:
    torch.manual_seed(0)
    model, images = own(), torch.randn(1, 3, 16, 24)
    layers: list[AttentionLayer] = []
    logits = capture_attention(model, images.requires_grad_(), layers.append)
    last = layers[-1]
    (gradient,) = torch.autograd.grad(logits.square().sum(), last.output, retain_graph=True)
    weights = last.weights().detach().requires_grad_()
    rebuilt = last.finish(weights @ last.value.detach(), slice(None))
    (expected,) = torch.autograd.grad(rebuilt, weights, gradient)
    torch.testing.assert_close(weights_gradient(last, gradient), expected)


@pytest.mark.parametrize(
    ("build", "query"),
    [
        (lambda: timm_model("vit_tiny_patch16_224", img_size=32), "class"),
        (lambda: timm_model("vit_medium_patch16_reg4_gap_256", img_size=32), "patches"),
        (torchvision_model, "class"),
        (lambda: hugging("ViT", "ForImageClassification"), "class"),
    ],
)
def test_models_of_other_libraries(build: Callable[..., Any], query: str) -> None:
    model = build().eval()
    images = torch.randn(2, 3, 32, 32)
    found = attention_maps(model, images)
    assert found.query == query
    total = found.maps.sum(dim=(-2, -1)) + found.prefix_mass
    torch.testing.assert_close(total, torch.ones_like(total))
    judged = relevance(model, images)
    assert judged.maps.shape == found.rollout.shape
    assert bool((judged.maps >= -1e-6).all())


@pytest.mark.parametrize("name", ["Beit", "Data2VecVision", "CLIP"])
def test_relevance_is_of_the_patches_that_the_head_averages(name: str) -> None:
    """The class token's row would be 0: no class depends on what the only block gives it."""
    vision = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    model = hugging(name, "ForImageClassification", **({"vision_config": vision} if name == "CLIP" else {})).eval()
    assert has_class_token(model)
    assert float(relevance(model, torch.randn(2, 3, 32, 32)).maps.max()) > 0


def test_a_model_without_logits_has_no_relevance() -> None:
    with pytest.raises(ValueError, match="gives no logits"):
        relevance(hugging("ViT"), torch.randn(1, 3, 32, 32))


def test_pictures_show_the_maps() -> None:
    image = torch.randint(0, 255, (2, 16, 24, 3), dtype=torch.uint8).numpy()
    maps = torch.rand(3, 4, 2, 3)
    left, right = plot_head_maps(image[0], maps, [1, 2, 3], query=(1, 2)).axes
    frame = left.patches[0]
    assert isinstance(frame, Rectangle)
    assert frame.get_bbox().bounds == (15.5, 7.5, 8, 8)
    shown: Any = right.images[0].get_array()
    torch.testing.assert_close(torch.tensor(shown[0, :3].filled()), (maps[0, 0, 0] / maps[0, 0].max()).double())
    figure = plot_attention_overlays(image, {"rollout": torch.rand(2, 2, 3)}, ["a", "b"])
    assert [axes.get_title("center") for axes in figure.axes[:2]] == ["image", "rollout"]
    assert len(figure.axes) == 4
    tall = plot_head_maps(image[0], torch.rand(32, 2, 14, 14), range(1, 33)).axes[1]
    assert tall.get_yticks().shape == (32,)
    assert tall.get_xticks().shape == (2,)
    wide = plot_head_maps(image[0], torch.rand(2, 48, 14, 14), [1, 2]).axes[1]
    assert wide.get_xticks().shape == (16,), "a label for every third head"


@pytest.mark.parametrize("drawing", ["attention_heads", "attention_overlays"])
def test_pictures_under_maps_end_where_the_patches_do(drawing: str) -> None:
    model = timm_model("vit_tiny_patch16_224", img_size=100, embed_dim=24, num_heads=2).eval()
    pixels = torch.randint(0, 256, (2, 3, 100, 100), dtype=torch.uint8)
    images = ImageSet(pixels=pixels, names=["a", "b"], source="made")
    target = AnalysisTarget(
        name="small", model=model, preprocessing=Preprocessing(image_size=(100, 100)), images=images
    )
    picture: Any = FIGURES[drawing](target).figure.axes[0].images[0].get_array()
    assert picture.shape[:2] == (96, 96)
