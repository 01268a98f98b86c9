"""The lower bound of a model's parameters, and models that no machine holds."""

from __future__ import annotations

import psutil
import pytest
import torch

from vit.config import ModelConfig, ViTConfig
from vit.config.vit import PositionKind
from vit.models import VisionTransformer, build_model, list_models, resolve
from vit.models.size import check_fits_memory, least_parameters


@pytest.mark.parametrize("name", list_models()[::4])
def test_no_model_has_fewer_parameters(name: str) -> None:
    config = resolve(ModelConfig(name=name))
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in build_model(config).parameters())
    assert 0.05 * parameters < least_parameters(config) <= parameters


def test_a_model_beyond_this_machines_memory_is_refused() -> None:
    large = psutil.virtual_memory().total // 4 + 1
    check_fits_memory(large - 2, "a width")
    with pytest.raises(ValueError, match=r"^model: a width makes at least .* GiB; this machine has"):
        check_fits_memory(large, "a width")
    with torch.device("meta"):
        check_fits_memory(large, "a width")


def test_it_is_refused_before_it_is_built() -> None:
    with pytest.raises(ValueError, match=r"model\.width 1048576, model\.depth 1000"):
        build_model(ViTConfig(width=2**20, depth=1000, num_heads=2))


@pytest.mark.parametrize("positions", ["sincos_2d", "learned_2d", "learned_1d", "none"])
def test_a_fine_grid_has_no_fewer_parameters(positions: PositionKind) -> None:
    config = ViTConfig(image_size=(64, 64), patch_size=(1, 1), width=8, depth=1, num_heads=1, positions=positions)
    assert least_parameters(config) <= sum(each.numel() for each in VisionTransformer(config).parameters())
