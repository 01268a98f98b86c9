"""timm's plain Vision Transformers: the same logits, or an error that names the unsupported part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch

from tests.weights.proof import Row, shapes
from tests.weights.timm_family import examine, names, state_of
from vit.libraries.timm import config_by_name as timm_config
from vit.libraries.timm_reading import architecture_of
from vit.models import build_model
from vit.weights.layout import apply_rules, strip_prefixes
from vit.weights.layouts import find_layout, refuse_unsupported

A_FEW = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_wee_patch16_reg1_gap_256",
    "vit_xsmall_patch16_clip_224",
    "beit_base_patch16_224",
    "vit_base_patch16_clip_quickgelu_224",
)
REFUSED = {
    "vit_relpos_base_patch16_224": "relative position biases that a small network computes",
    "vit_small_resnet50d_s16_224": "a hybrid's convolutional stem",
    "vit_base_patch16_xp_224": "attention and feed-forward in parallel",
    "vit_small_patch16_18x2_224": "several branches in parallel",
    "vit_dwee_patch16_reg1_gap_256": "differential attention",
    "vit_base_patch16_rpn_224": "norms after the branches",
    "samvit_base_patch16": "windows with relative positions",
    "swin_tiny_patch4_window7_224": "windows with relative position biases",
    "mobilenetv3_small_100": "the class MobileNetV3",
}

ROWS = json.loads((Path(__file__).parents[2] / "docs/weights.json").read_text())["rows"]
DOCUMENTED = {row["model"] for row in ROWS if row["layout"].startswith("timm")}


SAME_NAMES = (
    "vit_small_patch16_rope_ape_224",
    "cait_xxs24_224",
    "beit_base_patch16_224",
    "convit_tiny",
    "hiera_tiny_224",
    "naflexvit_base_patch16_parfac_gap",
    "aimv2_large_patch14_224",
    "vit_pe_core_tiny_patch16_384",
)
"""Models of other architectures whose names are, or begin as, a layout's."""


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


def check_taken_only_as_what_it_is(name: str) -> None:
    """A file of that model is refused, must be named, or has the architecture that its tensors are taken for.

    The loader refuses a file whose names or shapes are not those of the architecture.
    """
    with torch.device("meta"):
        model = timm.create_model(name)
    tensors = model.state_dict()
    layout = find_layout(tensors)
    try:
        refuse_unsupported(tensors, name)
        taken_for = None if layout is None else layout.config(strip_prefixes(layout, tensors))
    except ValueError:
        return
    if taken_for is None or layout is None:
        return
    applied = apply_rules(layout, tensors, taken_for)
    with torch.device("meta"):
        ours = build_model(taken_for)
    if applied.unexpected or shapes(applied.tensors) != shapes(ours.state_dict()):
        return
    assert taken_for == architecture_of(model, name)


@pytest.mark.parametrize("name", SAME_NAMES)
def test_other_architectures_with_the_same_names(name: str) -> None:
    check_taken_only_as_what_it_is(name)


@pytest.mark.slow
@pytest.mark.parametrize("module", timm.list_modules())
def test_every_architecture_of_timm_is_taken_only_as_what_it_is(module: str) -> None:
    of_module = timm.list_models(module=module)
    for name in of_module if module in ("beit", "deit", "eva", "naflexvit", "vision_transformer") else of_module[:1]:
        check_taken_only_as_what_it_is(name)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", names())
def test_every_plain_timm_model(name: str) -> None:
    """The documented models load; any other, perhaps of a newer timm, loads or is refused by name."""
    found = examine(name)
    if isinstance(found, str):
        assert name not in DOCUMENTED
        assert found.startswith(f"model.pretrained: {name!r} is not supported: it has ")
    else:
        check(found)


STATES = {
    "aimv2_large_patch14_224": "loaded",
    "naflexvit_base_patch16_siglip": "loaded",
    "vit_pe_core_tiny_patch16_384": "loaded",
    "naflexvit_base_patch16_parfac_gap": "computed by timm",
    "vit_base_patch16_sapiens2": "computed by timm",
}


@pytest.mark.parametrize("name", STATES)
def test_a_name_is_loaded_or_computed_by_timm(name: str) -> None:
    assert state_of(name)[0] == STATES[name]


def test_most_are_documented() -> None:
    assert len(DOCUMENTED) >= 140
