"""`torch.jit.trace`, with which other programs carry a model away: the same logits, for other images and batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vit.hub import create_model
from vit.models.initialization import perturb_weights

SMALL: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "num_heads": 2, "num_classes": 5}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers, mean pooling": {"num_registers": 2, "pooling": "gap", "layer_scale": 0.1},
    "rotary positions": {"positions": "rope"},
    "relative positions": {"positions": "relative"},
    "pooled by attention": {"pooling": "map", "class_token": False},
}


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.torch.jit.trace:FutureWarning")
@pytest.mark.parametrize("settings", MODELS.values(), ids=list(MODELS))
def test_a_traced_model_gives_the_same_logits(settings: dict[str, Any]) -> None:
    model = create_model("vit", **(SMALL | settings)).eval()
    torch.manual_seed(0)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        perturb_weights(model, scale=0.3)
        traced = torch.jit.trace(model, images[:1])
        assert model(images).std() > 0.1
        torch.testing.assert_close(traced(images), model(images), rtol=1e-5, atol=1e-6)
