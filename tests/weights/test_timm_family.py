"""timm's plain Vision Transformers: the same logits, or an error that names the unsupported part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.weights.proof import Row
from tests.weights.timm_family import examine, names
from vit.libraries.timm import config_by_name as timm_config

A_FEW = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_wee_patch16_reg1_gap_256",
    "vit_xsmall_patch16_clip_224",
)
REFUSED = {
    "vit_relpos_base_patch16_224": "relative position biases",
    "vit_base_patch16_rope_224": "EVA's blocks",
    "vit_small_resnet50d_s16_224": "a hybrid's convolutional stem",
    "vit_base_patch16_xp_224": "attention and feed-forward in parallel",
    "vit_small_patch16_18x2_224": "several branches in parallel",
    "vit_dwee_patch16_reg1_gap_256": "differential attention",
    "vit_base_patch16_rpn_224": "norms after the branches",
    "samvit_base_patch16": "windows with relative positions",
    "swin_tiny_patch4_window7_224": "windows with relative position biases",
    "beit_base_patch16_224": "relative position biases",
    "mobilenetv3_small_100": "the class MobileNetV3",
}

ROWS = json.loads((Path(__file__).parents[2] / "docs/weights.json").read_text())["rows"]
DOCUMENTED = {row["model"] for row in ROWS if row["layout"] == "timm"}


def check(rows: list[Row] | str) -> None:
    assert not isinstance(rows, str), rows
    for row in rows:
        assert row.loaded == row.present
        if row.how != "meta":
            assert row.difference is not None
            assert row.difference < 1e-5, row
            assert row.exact, row


@pytest.mark.parametrize("name", A_FEW)
def test_logits_of_a_few(name: str) -> None:
    check(examine(name))


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_parts_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.pretrained: '{name}' is not supported: it has .*{REFUSED[name]}"):
        timm_config(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_plain_timm_model(name: str) -> None:
    """The documented models load; any other, perhaps of a newer timm, loads or is refused by name."""
    found = examine(name)
    if isinstance(found, str):
        assert name not in DOCUMENTED
        assert found.startswith(f"model.pretrained: {name!r} is not supported: it has ")
    else:
        check(found)


def test_most_are_documented() -> None:
    assert len(DOCUMENTED) >= 140
