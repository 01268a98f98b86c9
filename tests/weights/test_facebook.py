"""Facebook's original files: read as timm reads them, wrappers included; dropped tensors are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.weights.facebook_files import (
    DEIT3_CONFIG,
    FILES,
    WIDTH,
    backbone,
    checkpoint,
    deit3,
    dinov2,
    dinov3,
    linear,
    prove_file,
    tensors_of,
)
from vit.config import ModelConfig, ViTConfig
from vit.hub import create_model, load_model, open_model


@pytest.mark.parametrize("name", FILES)
def test_logits_equal_timms_and_the_round_trip_is_bitwise(name: str) -> None:
    row = prove_file(name)
    assert row.layout == FILES[name][0]
    assert row.difference is not None
    assert row.difference <= 1e-5
    assert row.exact


def test_the_teacher_is_loaded_and_dropped_tensors_are_named(tmp_path: Path) -> None:
    tensors = tensors_of(FILES["DINO, the teacher of a checkpoint"][1])
    torch.save(checkpoint(tensors), tmp_path / "checkpoint.pth")
    loaded = load_model(ModelConfig(pretrained=str(tmp_path / "checkpoint.pth")))
    assert torch.equal(loaded.model.state_dict()["class_token"], tensors["backbone.cls_token"])
    assert loaded.report is not None
    assert len(loaded.report.dropped) == 6
    assert "6 left out (DINO's projection head, for pre-training)" in loaded.report.summary()
    assert loaded.model(torch.zeros(1, 3, 32, 32)).shape == (1, WIDTH)


def test_registers_and_mask_token_of_dinov2(tmp_path: Path) -> None:
    tensors = tensors_of(FILES["DINOv2 with registers"][1])
    torch.save(tensors, tmp_path / "dinov2.pth")
    loaded = load_model(ModelConfig(pretrained=str(tmp_path / "dinov2.pth")))
    assert loaded.report is not None
    assert loaded.report.dropped == {"mask_token": "stands for masked patches in pre-training"}
    config = loaded.model.config
    assert (config.num_registers, config.positions_on_prefix, config.num_classes) == (4, True, 0)  # type: ignore[union-attr]
    assert loaded.model.forward_features(torch.zeros(1, 3, 28, 28)).shape == (1, 1 + 4 + 4, WIDTH)


@torch.no_grad()
def test_wrapped_deit_has_timms_names(tmp_path: Path) -> None:
    """`{'model': …}`, with the distillation token and its head."""
    tensors = tensors_of(
        backbone(16, 6) | {"dist_token": (1, 1, WIDTH)} | linear("head", 7, WIDTH) | linear("head_dist", 7, WIDTH)
    )
    torch.save({"model": tensors}, tmp_path / "deit.pth")
    options: dict[str, Any] = {"image_size": 32, "depth": 2, "pretrained": str(tmp_path / "deit.pth"), "num_classes": 7}
    model = create_model("deit_tiny_distilled_patch16_224", **options).eval()
    assert torch.equal(model.state_dict()["distillation_head.weight"], tensors["head_dist.weight"])
    assert torch.equal(model.state_dict()["positions.prefix"], tensors["pos_embed"][:, :2])


def test_deit3_must_be_named(tmp_path: Path) -> None:
    """timm's models with rotary and learned positions have the same names and shapes."""
    torch.save(tensors_of(deit3()), tmp_path / "deit3.pth")
    what = r"rotary, .*; name it, as deit3_base_patch16_224 or vit_base_patch16_rope_ape_224"
    with pytest.raises(ValueError, match=rf"model\.name: it is missing: .* layout facebook-deit3, .* {what}"):
        create_model(pretrained=str(tmp_path / "deit3.pth"))
    with pytest.raises(ValueError, match=r"architecture: it is missing: .* whether positions are also rotary"):
        open_model(tmp_path / "deit3.pth")
    options: dict[str, Any] = {
        "image_size": 32,
        "width": WIDTH,
        "depth": 2,
        "num_heads": 3,
        "num_classes": 7,
        "init": "normal",
    }
    model = create_model("deit3_small_patch16_224", pretrained=str(tmp_path / "deit3.pth"), **options)
    assert model.config == replace(DEIT3_CONFIG, position_resize="bicubic")


def test_another_width_must_be_named(tmp_path: Path) -> None:
    narrow = {name: tuple(size // 2 if size >= WIDTH else size for size in shape) for name, shape in dinov2().items()}
    torch.save(tensors_of(narrow), tmp_path / "narrow.pth")
    with pytest.raises(ValueError, match=r"model\.name: it is missing: .*narrow\.pth does not tell the architecture"):
        create_model(pretrained=str(tmp_path / "narrow.pth"))


def test_dinov3_tells_its_architecture(tmp_path: Path) -> None:
    tensors = tensors_of(dinov3(gated=True))
    torch.save(tensors, tmp_path / "dinov3.pth")
    loaded = load_model(ModelConfig(pretrained=str(tmp_path / "dinov3.pth")))
    config, report = loaded.model.config, loaded.report
    assert isinstance(config, ViTConfig)
    assert (config.positions, config.rope_coordinates, config.num_heads, config.num_registers) == (
        "rope",
        "centred",
        3,
        4,
    )
    assert (config.feedforward, config.qkv_bias, config.norm_eps) == ("swiglu", True, 1e-5)
    assert report is not None
    assert set(report.dropped) == {"mask_token", "rope_embed.periods", "local_cls_norm.weight", "local_cls_norm.bias"}
    assert report.layout == "facebook-dinov3"


def test_masked_biases_of_the_keys_are_not_added(tmp_path: Path) -> None:
    """Files may have any number where the mask is 0."""
    tensors = tensors_of(dinov3())
    torch.save(tensors, tmp_path / "zero.pth")
    for layer in range(2):
        tensors[f"blocks.{layer}.attn.qkv.bias"].chunk(3)[1].fill_(3.0)
    torch.save(tensors, tmp_path / "any.pth")
    states = [create_model(pretrained=str(tmp_path / name)).state_dict() for name in ("zero.pth", "any.pth")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_dinov3_of_another_temperature_is_refused(tmp_path: Path) -> None:
    tensors = tensors_of(dinov3()) | {"rope_embed.periods": 50.0 ** (torch.arange(16) / 16)}
    torch.save(tensors, tmp_path / "dinov3.pth")
    with pytest.raises(ValueError, match=r"not supported: rope_embed\.periods are not those of the temperature 100"):
        create_model(pretrained=str(tmp_path / "dinov3.pth"))


def test_dinov3_with_a_bias_that_no_mask_goes_with_is_refused(tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in tensors_of(dinov3()).items() if not name.endswith("bias_mask")}
    torch.save(tensors, tmp_path / "dinov3.pth")
    with pytest.raises(ValueError, match=r"does not have blocks\.0\.attention\.qkv\.bias"):
        create_model(pretrained=str(tmp_path / "dinov3.pth"))


def test_an_unexpected_tensor_is_an_error(tmp_path: Path) -> None:
    torch.save(tensors_of(dinov2()) | {"decoder.stranger": torch.zeros(1)}, tmp_path / "more.pth")
    with pytest.raises(ValueError, match=r"decoder\.stranger"):
        create_model(pretrained=str(tmp_path / "more.pth"))
