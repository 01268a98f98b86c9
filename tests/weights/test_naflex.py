"""timm's NaFlexVit at fixed sizes: its own outputs with its own weights, at every size, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import nn

from tests.weights.proof import compare_names
from tests.weights.test_eva import largest_difference
from vit.hub import open_model
from vit.libraries.timm import config_by_name
from vit.libraries.timm_reading import config_of
from vit.models import VisionTransformer, build_model
from vit.weights.convert import convert_model, is_round_trip_exact, logit_difference, verify_conversion
from vit.weights.layouts import find_layout
from vit.weights.loader import load_weights
from vit.weights.naflex import NAFLEX

RESIZES = {
    "naflexvit_base_patch16_gap": "bicubic_antialiased",
    "naflexvit_base_patch16_par_gap": "bicubic_square",
    "naflexvit_base_patch16_siglip": "bilinear_antialiased",
    "naflexvit_base_patch16_radio_v3": "bilinear_corners_square",
    "naflexvit_so400m_patch16_radio_v4": "bilinear_square",
}
FACTORIZED = "naflexvit_base_patch16_parfac_gap"
GRIDS = ((8, 8), (4, 10), (24, 24))


def two_blocks(name: str) -> nn.Module:
    """timm's model, narrow and of two blocks, its positions on 16×16, its numbers far from the first ones."""
    torch.manual_seed(0)
    model = timm.create_model(name, depth=2, embed_dim=96, num_heads=4, pos_embed_grid_size=(16, 16)).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1 or key.startswith("embeds."):
                parameter.add_(torch.randn_like(parameter), alpha=0.3 if parameter.dim() != 2 else 0.0)
    return model


@pytest.mark.parametrize("name", RESIZES)
def test_outputs_are_timms_at_every_size(name: str) -> None:
    theirs = two_blocks(name)
    tensors, config = theirs.state_dict(), config_of(theirs, name)
    assert config.position_resize == RESIZES[name]
    assert find_layout(tensors, config) is NAFLEX
    assert is_round_trip_exact(NAFLEX, tensors, config)
    for grid in ((16, 16), *GRIDS):
        images = torch.randn(2, 3, grid[0] * 16, grid[1] * 16, generator=torch.Generator().manual_seed(1))
        assert largest_difference(theirs, images) < 2e-6, grid


def test_positions_resized_otherwise_are_not_timms() -> None:
    """The ways differ, so that the comparison above can fail."""
    theirs = two_blocks("naflexvit_base_patch16_siglip")
    config = config_of(theirs, "timm's")
    images = torch.randn(1, 3, 128, 128)
    with torch.inference_mode():
        expected = theirs(images)
        way: Any
        for way in set(RESIZES.values()) - {config.position_resize}:
            ours = build_model(replace(config, position_resize=way)).eval()
            load_weights(ours, theirs.state_dict(), "timm's", source_grid=config.grid_size)
            assert (ours(images) - expected).abs().max() / expected.abs().max() > 1e-4, way


@pytest.mark.parametrize("name", [name for name in timm.list_models("naflexvit_*") if name != FACTORIZED])
def test_names_and_shapes_of_every_model(name: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(name)
    compare_names(NAFLEX, name, config_of(theirs, name), theirs.state_dict())


def test_factorized_positions_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=f"'{FACTORIZED}' is not supported: it has factorized positions"):
        config_by_name(FACTORIZED)


def test_opened_by_name_it_is_ours_and_resizes_as_timm_does() -> None:
    opened = open_model("timm:naflexvit_base_patch16_siglip", random_weights=True, num_classes=3)
    assert isinstance(opened.model, VisionTransformer)
    assert opened.implementation == "vit"
    assert opened.model.config.position_resize == "bilinear_antialiased"
    assert opened.preprocessing.image_size == (384, 384)


def test_the_way_back_is_timms_plain_model_and_its_own() -> None:
    """`--to timm` writes the plain model of the same numbers; the layout itself is verified with NaFlexVit."""
    theirs = two_blocks("naflexvit_base_patch16_gap")
    config = config_of(theirs, "timm's")
    ours = build_model(config).eval()
    load_weights(ours, theirs.state_dict(), "timm's", source_grid=config.grid_size)
    conversion = convert_model(ours, "timm")
    assert list(verify_conversion(conversion))[-1] == "round trip: bitwise"
    assert logit_difference(ours, NAFLEX, theirs.state_dict()) < 2e-6


def test_at_loading_positions_may_be_resized_for_good() -> None:
    theirs = two_blocks("naflexvit_base_patch16_radio_v3")
    config = config_of(theirs, "timm's")
    wide = build_model(replace(config, image_size=(64, 160))).eval()
    report = load_weights(wide, theirs.state_dict(), "timm's", source_grid=config.grid_size)
    assert report.resized == {"positions.grid": "16×16 → 4×10"}
    images = torch.randn(1, 3, 64, 160)
    with torch.inference_mode():
        torch.testing.assert_close(wide(images), theirs(images), atol=1e-5, rtol=1e-5)
