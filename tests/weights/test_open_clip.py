"""OpenAI's names, which open_clip uses: outputs of the image tower, the text tower dropped with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.weights.clip_towers import NAMES, PROJECTION, clip, config
from vit.config import ModelConfig
from vit.hub import load_model
from vit.libraries.open_clip import open_clip_forward
from vit.weights.convert import is_round_trip_exact
from vit.weights.open_clip import OPEN_CLIP

pytest.importorskip("open_clip", reason="needs the extra 'test'")
OURS: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 128, "depth": 2, "num_heads": 2}


@torch.no_grad()
@pytest.mark.parametrize("quick_gelu", NAMES.values(), ids=list(NAMES))
def test_image_embeddings_equal_open_clips(quick_gelu: bool, tmp_path: Path) -> None:
    theirs: Any = clip(quick_gelu=quick_gelu)
    torch.save({"state_dict": {f"module.{k}": v for k, v in theirs.state_dict().items()}}, tmp_path / "clip.pt")
    settings = OURS | {"num_classes": PROJECTION, "head_bias": False, "pre_norm": True, "norm_eps": 1e-5}
    activation: Any = "quick_gelu" if quick_gelu else "gelu"
    asked = ModelConfig(name="vit", pretrained=str(tmp_path / "clip.pt"), feedforward=activation, **settings)
    loaded = load_model(asked)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    expected, ours = theirs.encode_image(images), loaded.model.eval()(images)
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert loaded.report is not None
    assert set(loaded.report.dropped.values()) == {"the text tower of the model"}
    assert is_round_trip_exact(OPEN_CLIP, theirs.state_dict(), config(quick_gelu=quick_gelu))
    own = {name: tensor for name, tensor in theirs.state_dict().items() if name.startswith("visual.")}
    reference = open_clip_forward(config(quick_gelu=quick_gelu), own)
    torch.testing.assert_close(reference(images), expected, rtol=1e-5, atol=1e-5)


def test_a_file_does_not_determine_its_activation(tmp_path: Path) -> None:
    torch.save(clip(quick_gelu=True).state_dict(), tmp_path / "clip.pt")
    with pytest.raises(ValueError, match=r"model\.name: it is missing: .*clip\.pt does not tell the architecture"):
        load_model(ModelConfig(pretrained=str(tmp_path / "clip.pt")))


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "ViT-B-32.pt"))
    with pytest.raises(ValueError, match=r"ViT-B-32\.pt is a TorchScript program, not tensors; refused"):
        load_model(ModelConfig(name="vit", pretrained=str(tmp_path / "ViT-B-32.pt")))
