"""Weights without a name: an architecture of their shapes is named, and none where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from vit.config import ModelConfig
from vit.hub.pretrained import load_model
from vit.weights.lookalike import architecture_like
from vit.weights.timm import TIMM

OWN = {
    **{"name": "vit", "image_size": 64, "patch_size": 8, "pooling": "gap", "class_token": False},
    **{"positions": "learned_1d_rope", "stem": "conv", "init": "mimetic"},
}
"""As `your_images` has it."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "ti.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224", num_classes=3).state_dict(), path)
    return path


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "vit_small_patch32_384", "vit_large_patch16_224", "vit_base_patch16_reg4_gap_256"]
)
def test_timms_models_are_known_by_their_shapes(name: str) -> None:
    with torch.device("meta"):
        tensors = timm.create_model(name, num_classes=3).state_dict()
    assert architecture_like(TIMM, tensors) == name


def test_other_shapes_have_no_name() -> None:
    with torch.device("meta"):
        tensors = timm.create_model("vit_tiny_patch16_224", depth=5).state_dict()
    assert architecture_like(TIMM, tensors) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (OWN, r"has positions for 197 patches, .*: add --model\.name vit_tiny_patch16_224$"),
        ({"name": "vit"}, r"has, and the model does not, .*: add --model\.name vit_tiny_patch16_224$"),
        ({}, r"the number of heads; its shapes are those of vit_tiny_patch16_224: name that$"),
    ],
)
def test_a_file_without_a_name_is_answered_with_one(tiny: Path, settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_model(ModelConfig(pretrained=str(tiny), new_head=True, **settings), 2)  # type: ignore[arg-type]
