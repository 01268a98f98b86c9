"""torchvision's Vision Transformers: logits, the architecture from the tensors, preprocessing, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from tests.weights.proof import filled, prove
from vit.config import ModelConfig, ViTConfig
from vit.data.preprocessing import _resized_size
from vit.hub import create_model, load_model
from vit.libraries.torchvision import NAMES, build_torchvision
from vit.libraries.torchvision import preprocessing_of as torchvision_preprocessing
from vit.weights import sources
from vit.weights.torchvision import TORCHVISION, torchvision_config

SMALL = ViTConfig(image_size=(32, 32), width=48, depth=2, num_heads=3, num_classes=7)


@pytest.mark.parametrize("changes", [{}, {"representation_width": 10}, {"num_heads": 6, "mlp_ratio": 2.5}])
def test_logits_of_a_small_model(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(SMALL, **changes)
    with torch.device("meta"):
        theirs = build_torchvision(config)
    row = prove(TORCHVISION, "small", config, filled(theirs).state_dict())
    assert row.difference is not None
    assert row.difference < 1e-5
    assert row.exact
    assert row.loaded == row.present


@pytest.mark.parametrize("name", NAMES)
def test_the_tensors_determine_the_architecture(name: str) -> None:
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name)
    tensors = theirs.state_dict()
    config = torchvision_config(tensors)
    assert config is not None
    with torch.device("meta"):
        again = build_torchvision(config).state_dict()
    assert {key: value.shape for key, value in again.items()} == {key: value.shape for key, value in tensors.items()}
    assert config.num_heads == theirs.encoder.layers[0].self_attention.num_heads
    assert config.image_size == (theirs.image_size, theirs.image_size)


def test_an_unknown_width_needs_a_name(tmp_path: Path) -> None:
    with torch.device("meta"):
        theirs = build_torchvision(SMALL)
    save_file(filled(theirs).state_dict(), tmp_path / "small.safetensors")
    with pytest.raises(ValueError, match=r"model\.name: it is missing: .*small\.safetensors .* the layout torchvision"):
        create_model(pretrained=str(tmp_path / "small.safetensors"))


def test_every_weights_preprocessing_resizes_as_torchvision() -> None:
    for name in (*NAMES, "resnet18", "resnet50"):
        for entry in torchvision.models.get_model_weights(name):
            transform = entry.transforms()
            ours = torchvision_preprocessing(transform)
            shorter = min(_resized_size(1000, 1300, ours))
            assert [shorter] == list(transform.resize_size), entry
            assert list(ours.image_size) == transform.crop_size * 2
            assert ours.interpolation == transform.interpolation.value


def test_weights_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        theirs = torchvision.models.VisionTransformer(32, 16, 2, 12, 768, 96)
    tensors = filled(theirs).state_dict()
    entry = torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1
    monkeypatch.setattr(type(entry), "get_state_dict", lambda *_, **__: tensors)
    loaded = load_model(ModelConfig(pretrained="torchvision:vit_b_16.IMAGENET1K_V1"))
    assert loaded.class_names is not None
    assert loaded.class_names[0] == "tench"
    assert loaded.preprocessing is not None
    assert loaded.preprocessing.crop_fraction == 0.875
    images = torch.randn(2, 3, 32, 32)
    theirs = build_torchvision(loaded.model.config)  # type: ignore[arg-type]
    theirs.load_state_dict(tensors)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model.eval()(images), theirs.eval()(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_b_17", r"torchvision has no classifier 'vit_b_17'; did you mean 'vit_b_16'"),
        ("swin_t", r"torchvision:swin_t is not supported"),
        ("vit_b_16.IMAGENET1K_V7", r"torchvision's vit_b_16 has no weights 'IMAGENET1K_V7'; did you mean"),
    ],
)
def test_unknown_names_are_refused(name: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        sources.open_source(f"torchvision:{name}")


def test_without_a_network_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("<urlopen error\nunreachable>")

    monkeypatch.setattr(torchvision.models.ViT_B_32_Weights, "get_state_dict", fail)
    with pytest.raises(ValueError, match=r"torchvision's weights 'vit_b_32' could not be fetched .*without a network"):
        create_model(pretrained="torchvision:vit_b_32")


@pytest.mark.parametrize(
    ("name", "value"), [("num_registers", 2), ("layer_scale", 0.1), ("image_size", (32, 48)), ("num_classes", 0)]
)
def test_fields_that_torchvision_lacks_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"--to: torchvision has no model with model\.{name}"):
        build_torchvision(dataclasses.replace(SMALL, **{name: value}))  # type: ignore[arg-type]
