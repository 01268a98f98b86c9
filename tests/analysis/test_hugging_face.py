"""transformers' own vision models can be looked into: attention, blocks, tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.analysis.models import hugging
from tests.weights.hf_models import patches_of
from vit.analysis.capture import capturing
from vit.analysis.model_structure import second_branches
from vit.analysis.positions import position_vectors
from vit.analysis.streams import residual_streams
from vit.analysis.tokens import token_layout
from vit.config import Preprocessing
from vit.hub import open_model
from vit.models import VisionTransformer

pytest.importorskip("transformers", reason="needs the extra 'text'")

RELATIVE = {"use_relative_position_bias": True}
FAMILIES: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "ViT": ("ViT", {}, 1, "learned"),
    "DeiT": ("DeiT", {}, 2, "learned"),
    "DINOv2": ("Dinov2", {}, 1, "learned"),
    "DINOv2 with registers": ("Dinov2WithRegisters", {"num_register_tokens": 3}, 4, "learned"),
    "DINOv3": ("DINOv3ViT", {"num_register_tokens": 3}, 4, "rope"),
    "CLIP": ("CLIPVision", {}, 1, "learned"),
    "SigLIP": ("SiglipVision", {}, 0, "learned"),
    "SigLIP 2": ("Siglip2Vision", {"num_patches": 16, "image_size": None}, 0, "learned"),
    "AIMv2": ("Aimv2Vision", {"use_head": True}, 0, "learned"),
    "MAE": ("ViTMAE", {"mask_ratio": 0.0}, 1, "learned"),
    "MSN": ("ViTMSN", {}, 1, "learned"),
    "I-JEPA": ("IJepa", {}, 0, "learned"),
    "BEiT": ("Beit", RELATIVE, 1, ""),
    "BEiT, one bias of all layers": ("Beit", {"use_shared_relative_position_bias": True}, 1, ""),
    "Data2Vec": ("Data2VecVision", RELATIVE, 1, ""),
    "Data2Vec, both biases": ("Data2VecVision", {**RELATIVE, "use_shared_relative_position_bias": True}, 1, ""),
}
"""Its classes, settings, tokens that are no patches, and its position vectors (none: biases on the scores)."""
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


class WithPatches(nn.Module):
    """A model that is given the pixels of each patch as a row, given images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config: Any = model.config

    def forward(self, images: Tensor, **options: Any) -> Any:
        return self.model(**patches_of(images, self.config), **options)


def build(family: str) -> nn.Module:
    kind, options, _, _ = FAMILIES[family]
    torch.manual_seed(0)
    model = hugging(kind, num_hidden_layers=2, attn_implementation="eager", **options).eval()
    if kind == "Siglip2Vision":
        model = WithPatches(model)
    for parameter in model.parameters():  # tables and tokens that start at 0 would prove nothing
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_maps_are_those_that_the_library_gives(family: str) -> None:
    model, maps = build(family), list[Tensor]()
    with torch.no_grad(), capturing(model, lambda layer: maps.append(layer.weights())):
        given = model(IMAGES, output_attentions=True).attentions
    assert len(maps) == len(given) == 2
    assert float((maps[0] - 1 / maps[0].shape[-1]).abs().max()) > 1e-2, "an even map proves nothing"
    for ours, theirs in zip(maps, given, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_tokens_and_positions_are_known(family: str) -> None:
    model, (_, _, num_prefix, positions) = build(family), FAMILIES[family]
    assert len(second_branches(model)) == 2
    if family != "MAE":
        found = residual_streams(model, [IMAGES])
        assert bool(found.class_ratio.isnan().all()) is (num_prefix == 0), "without a class token it has no ratio"
        layout = token_layout(model, (32, 32), 16 + num_prefix)
        assert layout.has_class_token is (num_prefix > 0)
    if positions:
        assert position_vectors(model)[positions].grid == (4, 4)
    else:
        with pytest.raises(ValueError, match="no position vectors"):
            position_vectors(model)


def test_mae_sees_every_patch_in_its_place(tmp_path: Any) -> None:
    model: Any = hugging("ViTMAE", mask_ratio=0.75)
    with pytest.raises(ValueError, match=r"MAE shuffles its patches; open_model gives"):
        token_layout(model, (32, 32), 5)
    model.save_pretrained(tmp_path)
    ours, theirs = (
        open_model(str(tmp_path), implementation=each, preprocessing=Preprocessing(image_size=(32, 32)))
        for each in ("ours", "theirs")
    )
    tokens: list[Tensor] = []
    assert isinstance(ours.model, VisionTransformer)
    theirs.model.get_submodule("model.layernorm").register_forward_hook(
        lambda _module, _args, output: tokens.append(output)
    )
    with torch.no_grad():
        theirs.model(IMAGES)
        torch.testing.assert_close(tokens[0], ours.model.forward_features(IMAGES), rtol=1e-4, atol=1e-5)
