"""A linear probe as a model's head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.probed import _fit
from vit.config import Preprocessing
from vit.hub import create_model, open_model
from vit.libraries import Provenance
from vit.models.vision_transformer import VisionTransformer
from vit.weights.huggingface import HowUsed
from vit.weights.timm_folder_writer import write_timm_folder


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"image_size": 8, "patch_size": 4, "width": 24, "depth": 1, "num_heads": 2}
    model = create_model("vit_tiny_patch16_224", num_classes=0, **sizes)
    preprocessing = Preprocessing(image_size=(8, 8), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    write_timm_folder(tmp_path / "encoder", model, HowUsed(preprocessing, []), Provenance(weights="random"))
    return tmp_path / "encoder"


def test_the_probe_becomes_the_head(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "classifier"
    assert main(["probed", str(encoder), "--data", "digits", "--output", str(output)]) == 0
    said = float(capsys.readouterr().out.removeprefix(f"{output}: ").partition("%")[0]) / 100
    assert said > 0.5, "of random features, which still tell many digits apart"
    opened = open_model(str(output))
    assert opened.class_names == [str(digit) for digit in range(10)]
    before = open_model(str(encoder)).model
    assert isinstance(before, VisionTransformer)
    kept = {name: tensor for name, tensor in opened.model.state_dict().items() if not name.startswith("head.")}
    torch.testing.assert_close(kept, before.state_dict())


def test_weights_are_for_features_as_they_are() -> None:
    torch.manual_seed(0)
    labels = torch.arange(90) % 3
    features = torch.randn(90, 4) * torch.tensor([1.0, 10.0, 0.1, 1.0]) + labels[:, None] + 5
    features[:, 3] = 7.0  # constant
    weight, bias = _fit(features, labels, 1.0)
    changed = features * torch.tensor([3.0, 0.2, 1.0, 1.0]) - 2  # standardised features stay the same
    again, other_bias = _fit(changed, labels, 1.0)
    logits = features @ weight.T + bias
    torch.testing.assert_close(changed @ again.T + other_bias, logits, rtol=1e-3, atol=1e-3)
    assert (logits.argmax(dim=1) == labels).double().mean() > 0.5
    assert (weight[:, 3].abs() < 1e-6).all()


def test_a_model_with_a_head_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["probed", "vit_tiny_patch16_224", "--data", "digits", "--output", str(tmp_path / "classifier")]
    assert main(arguments) == 2
    message = (
        "MODEL: 'vit_tiny_patch16_224' is not valid: it must be an encoder, a ViT without a head, that vit computes"
    )
    assert message in capsys.readouterr().err
