"""Norms against known ones; outliers where they were put; class token and registers apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.analysis.models import own, timm_model
from tests.analysis.test_patch_features import Given
from tests.figures.legends import legend_texts
from vit.analysis.norms import token_norms
from vit.config import ResNetConfig
from vit.models import ResNet


def directions(images: int, patches: int) -> torch.Tensor:
    torch.manual_seed(0)
    return nn.functional.normalize(torch.randn(images, patches, 8), dim=-1)


def test_lengths_that_were_given() -> None:
    lengths = torch.linspace(1, 2, 12).expand(3, 12).clone()
    lengths[0, 6], lengths[1, 6], lengths[2, 0] = 10, 20, 4.8  # medians are at most 1.6
    model = Given(directions(3, 12) * lengths[..., None])
    found = token_norms(model, [torch.zeros(3, 3, 24, 32)])
    expected = torch.zeros(3, 4, dtype=torch.float64)
    expected[1, 2], expected[0, 0] = 2 / 3, 1 / 3
    torch.testing.assert_close(found.outliers[0], expected)
    assert float(found.outlier_share[0]) == pytest.approx(3 / 36)
    assert found.border_share() == (pytest.approx(1 / 3), pytest.approx(10 / 12))
    assert float(found.highest[0]) == pytest.approx(20)
    assert float(found.class_norm[0]) == pytest.approx(math.sqrt(8))
    assert found.other_norms.shape == (1, 0)
    for share in (0.05, 0.5, 0.95):
        assert float(found.quantile(share)[0]) == pytest.approx(
            float(lengths.flatten().sort().values[math.ceil(share * 36) - 1]), rel=0.012
        )
    for share in (5, -1, math.nan):
        with pytest.raises(ValueError, match=f"share: {share} is not valid: it is a fraction of the patches"):
            found.quantile(share)


def test_batches_add_up_and_every_block_is_that_of_the_stream() -> None:
    model = own(num_registers=2)
    images = torch.randn(5, 3, 16, 24) * torch.tensor([9.0, 1, 1, 1, 1])[:, None, None, None]
    whole, parts = token_norms(model, [images]), token_norms(model, iter(images.split(2)))
    assert torch.equal(whole.counts, parts.counts)
    torch.testing.assert_close(whole.other_norms, parts.other_norms)
    outputs: list[torch.Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _module, _args, output: outputs.append(output.double()))
    with torch.no_grad():
        model(images)
    norms = torch.stack(outputs).norm(dim=-1)  # l b n
    torch.testing.assert_close(parts.highest, norms[:, :, 3:].amax(dim=(1, 2)))
    norms = norms.mean(dim=1)  # l n
    torch.testing.assert_close(parts.class_norm, norms[:, 0])
    torch.testing.assert_close(parts.other_norms, norms[:, 1:3])
    assert parts.num_images == 5
    assert int(parts.counts[0].sum()) == 30


def test_the_lowest_quantile_is_the_lowest_norm() -> None:
    found = token_norms(own(), [torch.randn(4, 3, 16, 24)])
    lowest = found.counts.bool().double().argmax(dim=1)
    highest = found.counts.shape[1] - 1 - found.counts.flip(1).bool().double().argmax(dim=1)
    middles = found.quantile(0.0).log10(), found.quantile(1.0).log10()
    width = (middles[1] - middles[0]) / (highest - lowest)
    torch.testing.assert_close(width, torch.full_like(width, float(width[0])))
    assert bool((found.quantile(0.0) > 0.1).all())
    assert bool((found.quantile(0.0) <= found.quantile(0.01)).all())


def test_without_outliers_and_without_class_token() -> None:
    model = own(pooling="gap", class_token=False)
    found = token_norms(model, [torch.randn(2, 3, 16, 24)])
    assert bool(found.class_norm.isnan().all())
    assert math.isnan(found.border_share()[0])
    panels = found.plot().axes
    assert [text.get_text() for axes in panels for text in axes.texts] == ["no outlying patches"]
    assert len(panels) == 4, "three panels, and a scale beside the first alone"


def test_timms_registers_are_apart() -> None:
    found = token_norms(timm_model("vit_small_patch14_reg4_dinov2", img_size=28), [torch.randn(2, 3, 28, 28)])
    assert found.other_norms.shape == (1, 4)
    labels = legend_texts(found.plot().axes[0])
    assert labels == ["class token", "other tokens"]


def test_what_has_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="the model's blocks give maps, no tokens"):
        token_norms(ResNet(ResNetConfig(depth=18)), [torch.randn(1, 3, 32, 32)])
    with pytest.raises(ValueError, match="images: none is not valid"):
        token_norms(own(), [])
    with pytest.raises(ValueError, match=r"batches: \(16, 32\) is not valid: all must be of the first one's size"):
        token_norms(own(), [torch.randn(1, 3, 16, 24), torch.randn(1, 3, 16, 32)])
