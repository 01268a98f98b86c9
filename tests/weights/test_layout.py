"""Tables of names, applied in both directions: by hand, and round trips of any sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.config import ViTConfig
from vit.weights.layout import (
    Layout,
    apply_rules,
    copied,
    fused,
    invert_rules,
    positions,
    reshaped,
    split,
    without_dropped,
)

CONFIG = ViTConfig(width=4, num_heads=2, depth=2, image_size=(2, 1), patch_size=(1, 1))
LAYOUT = Layout(
    name="theirs",
    recognizes=lambda tensors: "ln/weight" in tensors,
    rules=(
        copied("norm.{kind}", "ln/{kind}"),
        reshaped("head.weight", "head", "i o -> o i"),
        fused("blocks.{layer}.attention.qkv.weight", ("{layer}.q", "{layer}.k", "{layer}.v"), "c h d -> (h d) c"),
        split(("blocks.{layer}.a", "blocks.{layer}.b"), "ab{layer}"),
        *positions("table", "n c -> 1 n c"),
    ),
    config=lambda tensors: None,  # noqa: ARG005
    prefixes=("module.",),
    dropped={"mask": "unused"},
)


def numbered(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def theirs() -> dict[str, torch.Tensor]:
    return {
        "module.ln/weight": torch.tensor([1.0, 2.0]),
        "head": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        **{f"{layer}.{part}": numbered(4, 2, 2) + 100 * (layer > 0) for layer in (0, 11) for part in "qkv"},
        "ab0": torch.tensor([1.0, 2.0, 3.0, 4.0]),
        "module.table": torch.tensor([[1.0], [2.0], [3.0]]),
        "mask": torch.zeros(3),
        "stranger": torch.zeros(1),
    }


def test_by_hand() -> None:
    found = apply_rules(LAYOUT, theirs(), CONFIG)
    assert found.tensors["norm.weight"].tolist() == [1, 2]
    assert found.tensors["head.weight"].tolist() == [[1, 3, 5], [2, 4, 6]]
    qkv = found.tensors["blocks.11.attention.qkv.weight"]
    assert qkv.shape == (12, 4)
    assert qkv[1].tolist() == [101, 105, 109, 113]  # head 0, its second channel, of every input
    assert qkv[2].tolist() == [102, 106, 110, 114]  # head 1
    assert torch.equal(qkv[4:8], qkv[:4])
    assert found.tensors["blocks.0.b"].tolist() == [3, 4]
    assert found.tensors["positions.prefix"].tolist() == [[[1]]]
    assert found.tensors["positions.grid"].tolist() == [[[2], [3]]]
    assert (found.unexpected, found.dropped) == (["stranger"], {"mask": "unused"})
    actions = {name.split(".", 2)[-1] if "block" in name else name: action for name, action in found.actions.items()}
    assert actions == {
        "norm.weight": "copied",
        "head.weight": "reshaped",
        "attention.qkv.weight": "fused",
        "a": "split",
        "b": "split",
        "positions.prefix": "split",
        "positions.grid": "split",
    }


def test_positions_without_a_prefix_are_one_table() -> None:
    for changes in ({"positions_on_prefix": False}, {"class_token": False, "pooling": "gap"}):
        config = replace(CONFIG, **changes)
        found = apply_rules(LAYOUT, theirs(), config).tensors
        assert found["positions.grid"].flatten().tolist() == [1, 2, 3]
        assert "positions.prefix" not in found
        assert invert_rules(LAYOUT, found, config).tensors["table"].shape == (3, 1)


def test_round_trip() -> None:
    there = apply_rules(LAYOUT, theirs(), CONFIG)
    back = invert_rules(LAYOUT, there.tensors, CONFIG)
    expected = {name: tensor for name, tensor in without_dropped(LAYOUT, theirs()).items() if name != "stranger"}
    assert back.unexpected == []
    assert back.tensors.keys() == expected.keys()
    assert all(torch.equal(back.tensors[name], expected[name]) for name in expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(0, 7))
def test_round_trip_of_any_sizes(width: int, heads: int, per_head: int, patches: int, layer: int) -> None:
    config = replace(CONFIG, width=heads * per_head, num_heads=heads)
    source = {f"{layer}.{part}": torch.randn(width, heads, per_head) for part in "qkv"}
    source |= {"table": torch.randn(1 + patches, width), "head": torch.randn(width, heads)}
    back = invert_rules(LAYOUT, apply_rules(LAYOUT, source, config).tensors, config).tensors
    assert back.keys() == source.keys()
    assert all(torch.equal(back[name], source[name]) for name in source)


def test_an_incomplete_set_of_tensors_is_unexpected() -> None:
    source = theirs()
    del source["0.k"]
    assert apply_rules(LAYOUT, source, CONFIG).unexpected == ["0.q", "0.v", "stranger"]


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("head", (2, 2, 2), r"head \(2, 2, 2\) cannot be reshaped"),
        ("0.k", (4, 4), r"0\.k \(4, 4\), .* cannot be fused"),
        ("0.k", (4, 3, 1), r"cannot be fused"),
        ("ab0", (3,), r"ab0 \(3,\) cannot be split: 3 rows are not 2 equal parts"),
    ],
)
def test_a_shape_that_does_not_fit_its_rule_is_named(name: str, shape: tuple[int, ...], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        apply_rules(LAYOUT, theirs() | {name: torch.zeros(shape)}, CONFIG)
