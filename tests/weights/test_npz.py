"""Google's `.npz` files: names written by hand, timm's own reader against ours, the architecture from the arrays."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.weights.proof import Row, prove
from vit.config import ModelConfig, ViTConfig
from vit.hub import create_model, load_model
from vit.weights.layout import Layout, strip_prefixes
from vit.weights.layouts import find_layout
from vit.weights.npz import BIG_VISION, NPZ

SMALL = ViTConfig(image_size=(32, 32), patch_size=(8, 8), width=24, depth=2, num_heads=3, num_classes=5)
ORIGINAL = {"positions": "Transformer/posembed_input/pos_embedding", "attention": 1, "norm": 2, "mlp": 3}
NEWER = {"positions": "pos_embedding", "attention": 0, "norm": 1, "mlp": 0}


def google_arrays(config: ViTConfig, style: dict[str, Any] = ORIGINAL) -> dict[str, np.ndarray]:
    """A file in Google's names, as vit_jax and big_vision write them; written out here, independent of the layout."""
    random = np.random.default_rng(0)
    width, hidden, heads = config.width, round(config.width * config.mlp_ratio), config.num_heads
    per_head = width // heads
    ph, pw = config.patch_size
    rows = config.grid_size[0] * config.grid_size[1] + (config.class_token and config.positions_on_prefix)
    shapes: dict[str, tuple[int, ...]] = {
        "embedding/kernel": (ph, pw, 3, width),
        "embedding/bias": (width,),
        style["positions"]: (1, rows, width),
        "Transformer/encoder_norm/scale": (width,),
        "Transformer/encoder_norm/bias": (width,),
    }
    if config.class_token:
        shapes["cls"] = (1, 1, width)
    if config.num_classes:
        shapes |= {"head/kernel": (config.representation_width or width, config.num_classes)}
        shapes |= {"head/bias": (config.num_classes,)}
    if config.representation_width:
        shapes["pre_logits/kernel"] = (width, config.representation_width)
        shapes["pre_logits/bias"] = (config.representation_width,)
    parts = [(f"Transformer/encoderblock_{layer}", style) for layer in range(config.depth)]
    if config.pooling == "map":
        shapes["MAPHead_0/probe"] = (1, 1, width)
        parts.append(("MAPHead_0", {"attention": 0, "norm": 0, "mlp": 0}))
    for prefix, numbers in parts:
        attention, mlp = (
            f"{prefix}/MultiHeadDotProductAttention_{numbers['attention']}",
            f"{prefix}/MlpBlock_{numbers['mlp']}",
        )
        for part in ("query", "key", "value"):
            shapes |= {
                f"{attention}/{part}/kernel": (width, heads, per_head),
                f"{attention}/{part}/bias": (heads, per_head),
            }
        shapes |= {f"{attention}/out/kernel": (heads, per_head, width), f"{attention}/out/bias": (width,)}
        shapes |= {f"{mlp}/Dense_0/kernel": (width, hidden), f"{mlp}/Dense_0/bias": (hidden,)}
        shapes |= {f"{mlp}/Dense_1/kernel": (hidden, width), f"{mlp}/Dense_1/bias": (width,)}
        for norm in {0, numbers["norm"]}:
            shapes |= {f"{prefix}/LayerNorm_{norm}/scale": (width,), f"{prefix}/LayerNorm_{norm}/bias": (width,)}
    return {name: (random.normal(size=shape) * 0.3).astype(np.float32) for name, shape in shapes.items()}


CASES: dict[str, tuple[Layout, dict[str, Any], dict[str, Any]]] = {
    "original": (NPZ, ORIGINAL, {}),
    "exact GELU": (NPZ, ORIGINAL, {"feedforward": "gelu"}),
    "big_vision": (BIG_VISION, NEWER, {"class_token": False, "pooling": "gap"}),
    "big_vision map": (BIG_VISION, NEWER, {"class_token": False, "pooling": "map", "num_classes": 0}),
}


def prove_npz(case: str, config: ViTConfig = SMALL) -> Row:
    layout, style, changes = CASES[case]
    config = dataclasses.replace(config, feedforward="gelu_tanh")
    config = dataclasses.replace(config, **changes)
    arrays = google_arrays(config, style)
    return prove(layout, case, config, {name: torch.from_numpy(array) for name, array in arrays.items()})


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_timms_reading_of_the_file(case: str) -> None:
    row = prove_npz(case)
    assert row.loaded == row.present
    assert row.difference is not None
    assert row.difference < 1e-5
    assert row.exact


@pytest.mark.parametrize("case", [*CASES, "AugReg", "no positions on the class token", "representation"])
def test_the_arrays_determine_the_architecture(case: str, tmp_path: Path) -> None:
    others: dict[str, tuple[Layout, dict[str, Any], dict[str, Any]]] = {
        "AugReg": (NPZ, ORIGINAL, {"num_classes": 11}),
        "no positions on the class token": (BIG_VISION, NEWER, {"positions_on_prefix": False}),
        "representation": (NPZ, ORIGINAL, {"representation_width": 13}),
    }
    _, style, changes = (CASES | others)[case]
    config = dataclasses.replace(SMALL, **changes)
    np.savez(tmp_path / "weights.npz", **google_arrays(config, style))  # type: ignore[arg-type]
    found = load_model(ModelConfig(pretrained=str(tmp_path / "weights.npz")))
    expected = dataclasses.replace(config, feedforward="gelu_tanh", init="normal", position_resize="bilinear_corners")
    assert found.model.config == expected
    assert found.report is not None
    assert set(found.report.loaded) == set(found.model.state_dict())
    assert "fused" in found.report.summary()


def test_a_kernel_is_transposed_and_a_head_is_a_block_of_rows(tmp_path: Path) -> None:
    arrays = google_arrays(SMALL)
    np.savez(tmp_path / "weights.npz", **arrays)  # type: ignore[arg-type]
    model = create_model(pretrained=str(tmp_path / "weights.npz"))
    tensors = model.state_dict()
    attention = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"
    key = arrays[f"{attention}/key/kernel"]
    assert tensors["blocks.1.attention.qkv.weight"][24 + 8 * 2 + 3, 7] == key[7, 2, 3].item()
    assert tensors["blocks.1.attention.qkv.bias"][48 + 8 * 1 + 5] == arrays[f"{attention}/value/bias"][1, 5].item()
    assert (
        tensors["blocks.1.attention.output.weight"][4, 8 * 2 + 1] == arrays[f"{attention}/out/kernel"][2, 1, 4].item()
    )
    assert tensors["embedding.projection.weight"][9, 2, 3, 4] == arrays["embedding/kernel"][3, 4, 2, 9].item()
    assert tensors["head.weight"][4, 20] == arrays["head/kernel"][20, 4].item()


def test_wrappers_and_other_state_are_dropped() -> None:
    arrays = {f"opt/target/{name}": array for name, array in google_arrays(SMALL).items()} | {
        "opt/state/step": np.zeros(1)
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    assert find_layout(tensors) is NPZ
    assert set(google_arrays(SMALL)) < set(strip_prefixes(NPZ, tensors))
    row = prove(NPZ, "wrapped", dataclasses.replace(SMALL, feedforward="gelu_tanh"), tensors)
    assert row.exact
    assert (row.loaded, row.present) == (len(arrays) - 1, len(arrays))


def test_a_name_reads_the_file_with_its_own_activation(tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", **google_arrays(SMALL))  # type: ignore[arg-type]
    model = create_model(
        "vit", pretrained=str(tmp_path / "weights.npz"), width=24, depth=2, image_size=32, patch_size=8
    )
    assert model.config.feedforward == "gelu"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"does not have blocks\.2\."):
        create_model("vit", pretrained=str(tmp_path / "weights.npz"), width=24, depth=3, image_size=32, patch_size=8)
