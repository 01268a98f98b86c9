"""transformers' plain image encoders that are not computed here: opened with their own class, and their own outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vit.hub import open_model
from vit.libraries.tokens import library_tokens

transformers = pytest.importorskip("transformers", reason="needs the extra 'text'")
IMAGE = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 100}
IMAGE |= {"image_size": 32, "patch_size": 8}
TEXT = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
ENCODERS = {
    "AltCLIPVisionModel": "AltCLIPVisionConfig",
    "Blip2VisionModel": "Blip2VisionConfig",
    "BlipVisionModel": "BlipVisionConfig",
    "ChineseCLIPVisionModel": "ChineseCLIPVisionConfig",
    "FlavaImageModel": "FlavaImageConfig",
    "InstructBlipVisionModel": "InstructBlipVisionConfig",
    "MetaClip2VisionModel": "MetaClip2VisionConfig",
    "MetaClip2VisionModelWithProjection": "MetaClip2VisionConfig",
    "OwlViTVisionModel": "OwlViTVisionConfig",
    "Owlv2VisionModel": "Owlv2VisionConfig",
}


def saved(kind: str, config: str, folder: Path, **settings: Any) -> Any:
    """A small model with random weights, in evaluation mode, and its folder."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
@pytest.mark.parametrize("kind", ENCODERS)
def test_a_plain_encoder_is_computed_by_transformers(kind: str, tmp_path: Path) -> None:
    projected = kind.endswith("Projection")
    theirs = saved(kind, ENCODERS[kind], tmp_path, **IMAGE, **({"projection_dim": 20} if projected else {}))
    images = torch.randn(2, 3, 32, 32)
    output = theirs(pixel_values=images)
    expected = output.image_embeds if projected else output.pooler_output
    for implementation in ("auto", "theirs"):
        opened = open_model(tmp_path, implementation=implementation)
        assert opened.implementation == "transformers"
        torch.testing.assert_close(opened.model(images), expected)
    assert expected.shape == (2, 20 if projected else 48)
    (tmp_path / "model.safetensors").unlink()
    drawn = open_model(tmp_path, random_weights=True, implementation="theirs")
    assert drawn.model(images).shape == expected.shape


@torch.no_grad()
@pytest.mark.parametrize("kind", ENCODERS)
def test_the_tokens_of_a_plain_encoder_are_found(kind: str, tmp_path: Path) -> None:
    """A class token, and one for each of 4×4 patches, after the final norm."""
    saved(kind, ENCODERS[kind], tmp_path, **IMAGE)
    model, images = open_model(tmp_path, implementation="theirs").model, torch.randn(2, 3, 32, 32)
    found = library_tokens(model)
    assert found is not None
    tokens, num_prefix = found.read(lambda: model(images), images, 2)
    assert [each.shape for each in tokens] == [(2, 17, 48)] * 2
    assert num_prefix == 1
    assert found.has_class_token
    assert isinstance(found.norm, torch.nn.LayerNorm)


@torch.no_grad()
def test_the_image_tower_of_flava(tmp_path: Path) -> None:
    both = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    settings = {"image_config": IMAGE, "text_config": TEXT, "multimodal_config": both}
    theirs = saved("FlavaModel", "FlavaConfig", tmp_path, **settings)
    images = torch.randn(2, 3, 32, 32)
    opened = open_model(tmp_path)
    torch.testing.assert_close(opened.model(images), theirs.image_model(pixel_values=images).pooler_output)


def test_the_code_of_a_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does transformers ask for it on the terminal."""
    settings = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.extend(words) or "y")
    with pytest.raises(ValueError, match="could not be built by transformers") as caught:
        open_model(tmp_path)
    assert "\n" not in str(caught.value)
    assert asked == []
    assert not (tmp_path / "ran").exists()


def test_an_encoder_that_transformers_does_not_open_alone_is_one_line(tmp_path: Path) -> None:
    """Its blocks mix the frames of a video."""
    saved("XCLIPVisionModel", "XCLIPVisionConfig", tmp_path, **IMAGE)
    with pytest.raises(ValueError, match=r"by transformers \(its AutoModel has no model for model_type 'xclip_vision"):
        open_model(tmp_path)
