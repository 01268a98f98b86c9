"""Heads taken out: what they gave is gone, and nothing else; the weights come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.analysis.models import hugging, own, timm_model, torchvision_model
from vit.analysis.head_ablation import HeadAblation, ablate_heads, attention_outputs, without_head
from vit.analysis.unsupported import Unsupported
from vit.config import ResNetConfig
from vit.evaluation.statistics import paired_share_interval
from vit.figures.head_ablation import plot_head_ablation
from vit.models import ResNet


def test_a_head_whose_values_are_zero_loses_nothing_more() -> None:
    model, images = own(depth=1), torch.randn(3, 3, 16, 24)
    attention: Any = model.blocks[0].attention
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    with torch.no_grad():
        with without_head(attention_outputs(model)["blocks.0.attention"], 1):
            without = model(images)
        attention.qkv.weight[-8:] = 0  # the values of the second of two heads of width 8
        attention.qkv.bias[-8:] = 0
        torch.testing.assert_close(model(images), without)


@pytest.mark.parametrize(
    "build",
    [
        lambda: timm_model("vit_tiny_patch16_224", img_size=32),
        torchvision_model,
        lambda: hugging("ViT", "ForImageClassification"),
        lambda: hugging("CLIPVision"),
    ],
)
def test_every_library_has_its_projection(build: Callable[..., Any]) -> None:
    ((projection, num_heads, width),) = attention_outputs(build()).values()
    assert projection.in_features == num_heads * width


def test_only_the_named_layers_are_judged() -> None:
    """A pooling layer of known attention may be in the model too, with heads of its own."""
    model = own(depth=2)
    found = ablate_heads(model, lambda: torch.ones(3, dtype=torch.bool), layers=["blocks.1.attention"])
    assert (found.layers, tuple(found.ablated.shape)) == (["blocks.1.attention"], (1, 2))
    with pytest.raises(Unsupported, match="pool is not valid: its heads cannot be left out"):
        ablate_heads(model, lambda: torch.ones(3, dtype=torch.bool), layers=["pool"])


def test_each_head_is_judged_alone_and_the_weights_come_back() -> None:
    model = own()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    seen: list[list[float]] = []

    def judge() -> torch.Tensor:
        norms = [
            model.get_parameter(f"blocks.{layer}.attention.output.weight").detach()[:, half]
            for layer in range(len(model.blocks))
            for half in (slice(8), slice(8, 16))
        ]
        seen.append([float(part.abs().sum() > 0) for part in norms])
        right = torch.zeros(20, dtype=torch.bool)
        right[: round(5 * sum(seen[-1])) - 2 * (seen[-1][2] == 0)] = True
        return right

    told: list[tuple[int, int]] = []
    found = ablate_heads(model, judge, progress=lambda *count: told.append(count))
    assert seen == [[1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]
    torch.testing.assert_close(found.lost, torch.tensor([[0.25, 0.25], [0.35, 0.25]]).double())
    assert (found.whole, found.num_images) == (1.0, 20)
    low, high = paired_share_interval(np.array(5.0), np.array(0.0), np.array(20.0))
    assert found.interval[:, 0, 0].tolist() == pytest.approx([float(low), float(high)])
    assert told[-1] == (4, 4)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_rows_have_the_numbers_of_their_blocks() -> None:
    model = own()
    found = ablate_heads(model, lambda: torch.ones(4, dtype=torch.bool), layers=["blocks.1.attention"])
    assert (found.layers, found.blocks) == (["blocks.1.attention"], [2])
    figure = found.plot({"distance": torch.tensor([[1.0, 2.0]])})
    figure.canvas.draw()
    panel, _, _, bar = figure.axes
    assert [label.get_text() for label in panel.get_yticklabels() if label.get_text()] == ["2"]
    assert bar.get_ylim() == (2, 3)
    with pytest.raises(ValueError, match=r"blocks: \(1,\) .* \(2,\): one number for each row"):
        plot_head_ablation([[0.1], [0.2]], {}, blocks=[1])


def test_the_weights_come_back_when_the_judge_fails() -> None:
    model = own()
    before = model.get_parameter("blocks.0.attention.output.weight").detach().clone()
    calls = iter([torch.ones(2, dtype=torch.bool)])
    with pytest.raises(StopIteration):
        ablate_heads(model, lambda: next(calls))
    torch.testing.assert_close(model.get_parameter("blocks.0.attention.output.weight").detach(), before, rtol=0, atol=0)


def test_other_images_at_the_second_call_are_refused() -> None:
    calls = iter([torch.ones(2, dtype=torch.bool), torch.ones(3, dtype=torch.bool)])
    with pytest.raises(ValueError, match=r"hits\(\): \(3,\) .* of the same 2 images every time"):
        ablate_heads(own(), lambda: next(calls))


def test_noise_stays_pale_and_only_sure_heads_are_marked() -> None:
    lost, ends = [[0.01, 0.03]], [[[-0.02, 0.01]], [[0.04, 0.05]]]
    panel, _ = plot_head_ablation(lost, {}, interval=ends).axes
    norm = panel.images[0].norm
    assert (norm.vmin, norm.vmax) == pytest.approx((-3.0, 3.0))  # half of the wider interval, in points
    assert np.asarray(panel.lines[0].get_xydata()).tolist() == [[2, 1]]
    assert panel.get_title(loc="left") == "accuracy lost (points)"
    with pytest.raises(ValueError, match=r"interval: \(1, 2\) .* \(2, 1, 2\): two ends for each head"):
        plot_head_ablation(lost, {}, interval=lost)


def test_ranks_that_agree_and_that_do_not() -> None:
    ablated = torch.tensor([[0.9, 0.5], [0.8, 1.0]]).double()
    ends = torch.stack((1 - ablated, 1 - ablated))
    found = HeadAblation(whole=1.0, ablated=ablated, interval=ends, layers=["a", "b"], num_images=10)
    distance = torch.tensor([[2.0, 400.0], [3.0, 1.0]])
    assert found.rank_correlation(distance) == pytest.approx(1)
    numbers = found.numbers({"distance": distance, "entropy": torch.ones(2, 2)})
    assert numbers["rank_correlation"]["entropy"] != numbers["rank_correlation"]["entropy"], "NaN: it is constant"
    axes = plot_head_ablation(found.lost, {"distance": distance, "entropy": -distance}).axes
    assert np.asarray(axes[1].collections[-1].get_offsets())[1].tolist() == pytest.approx([400, 50])


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="no attention that can be read"):
        ablate_heads(ResNet(ResNetConfig(depth=18)), lambda: torch.ones(1, dtype=torch.bool))
