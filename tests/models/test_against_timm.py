"""Our Vision Transformer equals timm's with the same weights: logits, features and every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import timm.models.deit
import timm.models.vision_transformer
import torch
from timm.layers import SwiGLU
from torch import Tensor

from vit.config import ViTConfig
from vit.models import VisionTransformer

SMALL: dict[str, Any] = {
    "image_size": (24, 32),
    "patch_size": (8, 8),
    "width": 48,
    "depth": 2,
    "num_heads": 3,
    "num_classes": 7,
}
THEIRS = {"img_size": (24, 32), "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 7}
POOLING = {
    "attn_pool.latent": "attention_pool.probe",
    "attn_pool.q": "attention_pool.attention.query",
    "attn_pool.proj": "attention_pool.attention.output",
    "attn_pool.mlp.fc1": "attention_pool.feedforward.fc1",
    "attn_pool.mlp.fc2": "attention_pool.feedforward.fc2",
    "attn_pool.norm": "attention_pool.norm",
}
PARTS = {
    ".attn.qkv": ".attention.qkv",
    ".attn.proj": ".attention.output",
    ".attn.q_norm": ".attention.query_norm",
    ".attn.k_norm": ".attention.key_norm",
    ".ls1.": ".scale1.",
    ".ls2.": ".scale2.",
    ".mlp.fc1_g": ".feedforward.gate",
    ".mlp.fc1_x": ".feedforward.fc1",
    ".mlp.fc1": ".feedforward.fc1",
    ".mlp.fc2": ".feedforward.fc2",
    "patch_embed.proj": "embedding.projection",
    "cls_token": "class_token",
    "dist_token": "distillation_token",
    "reg_token": "register_tokens",
    "norm_pre": "pre_norm",
    "fc_norm": "pool_norm",
    "head_dist": "distillation_head",
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "gap": ({"pooling": "gap", "final_norm": "pooled"}, {"global_pool": "avg"}),
    "gap_norm_before": (
        {"pooling": "gap", "class_token": False},
        {"global_pool": "avg", "fc_norm": False, "class_token": False},
    ),
    "map": ({"pooling": "map", "class_token": False}, {"global_pool": "map", "class_token": False}),
    "registers": ({"num_registers": 4, "positions_on_prefix": False}, {"reg_tokens": 4, "no_embed_class": True}),
    "positions_on_registers": ({"num_registers": 4, "positions_on_registers": True}, {"reg_tokens": 4}),
    "no_final_norm": ({"final_norm": "none"}, {"final_norm": False}),
    "qk_norm": ({"qk_norm": True}, {"qk_norm": True}),
    "no_qkv_bias": ({"qkv_bias": False}, {"qkv_bias": False}),
    "layer_scale": ({"layer_scale": 0.1}, {"init_values": 0.1}),
    "pre_norm": ({"pre_norm": True}, {"pre_norm": True}),
    "swiglu": ({"feedforward": "swiglu"}, {"mlp_layer": SwiGLU, "mlp_ratio": 2.67, "act_layer": torch.nn.SiLU}),
    "no_positions": ({"positions": "none"}, {"pos_embed": "none"}),
    "distilled": ({"distillation_token": True}, {}),
    "backend_reference": ({"backend": "reference"}, {}),
    "backend_matmul": ({"backend": "matmul"}, {}),
}


def translate(state: Any, prefix_positions: int) -> dict[str, Tensor]:
    """Convert timm's names and layout to ours."""
    ours = {}
    for name, tensor in state.items():
        for theirs, mine in (POOLING if name.startswith("attn_pool") else PARTS).items():
            name = name.replace(theirs, mine)
        if name == "pos_embed":
            ours["positions.grid"] = tensor[:, prefix_positions:]
            if prefix_positions:
                ours["positions.prefix"] = tensor[:, :prefix_positions]
        elif name.startswith("attn_pool.kv"):
            for part, piece in zip(("key", "value"), tensor.chunk(2), strict=True):
                ours[f"attention_pool.attention.{part}.{name.split('.')[-1]}"] = piece
        else:
            ours[name] = tensor
    return ours


def pair(options: dict[str, Any], their_options: dict[str, Any]) -> tuple[Any, Any, int]:
    ours = VisionTransformer(ViTConfig(**(SMALL | options)))
    distilled = options.get("distillation_token", False)
    package = timm.models.deit if distilled else timm.models.vision_transformer
    module = package.VisionTransformerDistilled if distilled else package.VisionTransformer
    theirs = module(**(THEIRS | their_options))
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    prefix = 0 if ours.positions.prefix is None else ours.positions.prefix.shape[1]
    ours.load_state_dict(translate(theirs.state_dict(), prefix), strict=True)
    return ours, theirs, prefix


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients(case: str) -> None:
    ours, theirs, prefix = pair(*CASES[case])
    images = torch.randn(3, 3, 24, 32)
    logits, expected = ours(images), theirs(images)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    for out in (logits, expected):
        out.square().sum().backward()
    gradients = translate({name: p.grad for name, p in theirs.named_parameters()}, prefix)
    assert set(gradients) == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        scale = gradients[name].abs().max().item()
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-4 * scale + 1e-6, rtol=1e-3, msg=name)


@pytest.mark.parametrize("case", ["plain", "gap", "registers", "map", "distilled"])
def test_features_and_pooled_vector(case: str) -> None:
    ours, theirs, _ = pair(*CASES[case])
    images = torch.randn(2, 3, 24, 32)
    tokens, expected = ours.forward_features(images), theirs.forward_features(images)
    torch.testing.assert_close(tokens, expected, atol=1e-4, rtol=1e-4)
    pooled = theirs.forward_head(expected, pre_logits=True)
    torch.testing.assert_close(ours.pool(tokens), pooled, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [(24, 24), (40, 16), (64, 48)])
def test_another_image_size_at_run_time(size: tuple[int, int]) -> None:
    ours, theirs, _ = pair({}, {"dynamic_img_size": True})
    images = torch.randn(2, 3, *size)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=1e-4)


def test_separate_heads_of_the_distilled_model() -> None:
    ours, theirs, _ = pair(*CASES["distilled"])
    theirs.set_distilled_training(True)
    images = torch.randn(2, 3, 24, 32)
    both = ours(images, separate_heads=True)
    assert both.shape == (2, 2, 7)
    torch.testing.assert_close(both, torch.stack(theirs(images), dim=1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours(images), both.mean(1))


def test_tiny_model_by_name() -> None:
    name = "vit_tiny_patch16_224"
    theirs = timm.create_model(name, depth=1, img_size=32, num_classes=5)
    ours = VisionTransformer(
        ViTConfig(image_size=(32, 32), patch_size=(16, 16), width=192, depth=1, num_heads=3, num_classes=5)
    )
    ours.load_state_dict(translate(theirs.state_dict(), 1), strict=True)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-5, rtol=1e-4)
