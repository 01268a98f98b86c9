"""A model's identity changes with everything that its logits depend on, and with nothing else."""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vit.config import ViTConfig
from vit.hub import model_digest, open_model
from vit.models import VisionTransformer

CONFIG = ViTConfig(image_size=(16, 16), patch_size=(8, 8), width=24, depth=1, num_heads=2, num_classes=3)


def _built(**changes: Any) -> VisionTransformer:
    model = VisionTransformer(replace(CONFIG, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    return model


@pytest.mark.parametrize(
    "changes",
    [{"num_heads": 3}, {"feedforward": "gelu_tanh"}, {"position_resize": "bilinear_corners"}, {"norm_eps": 1e-5}],
    ids=str,
)
def test_models_of_equal_weights_and_another_architecture_differ(changes: dict[str, Any]) -> None:
    assert model_digest(_built(**changes)) != model_digest(_built())


def test_the_backend_and_the_mode_do_not_count() -> None:
    assert model_digest(_built(backend="reference")) == model_digest(_built().eval()) == model_digest(_built().train())


def test_one_number_counts() -> None:
    model, other = _built(), _built()
    with torch.no_grad():
        other.get_parameter("head.bias")[0] += 1e-6
    assert model_digest(model) != model_digest(other)


def test_the_file_of_a_users_class_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    code = "from torch import nn\nclass Mine(nn.Linear):\n    def forward(self, x): return {}super().forward(x)\n"
    file, found = tmp_path / "mine_of_identity.py", list[str]()
    for sign in ("", "-", ""):
        file.write_text(code.format(sign))
        os.utime(file, (len(found), len(found)))  # Python keeps compiled files by their time and size
        sys.modules.pop(file.stem, None)
        torch.manual_seed(0)
        found.append(model_digest(importlib.import_module(file.stem).Mine(2, 2)))
    assert found[0] == found[2] != found[1]


def test_settings_of_another_librarys_modules_count() -> None:
    theirs = open_model("timm:test_vit", random_weights=True, implementation="theirs", num_classes=3)
    before = model_digest(theirs.model)
    assert before == model_digest(theirs.model)
    vars(theirs.model.get_submodule("blocks.0.attn"))["num_heads"] = 99
    assert model_digest(theirs.model) != before


class _WithState(nn.Linear):
    def __init__(self, calibration: float) -> None:
        super().__init__(2, 2)
        self._calibration = calibration

    def get_extra_state(self) -> dict[str, float]:
        return {"calibration": self._calibration}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self._calibration


def test_states_that_are_no_tensors_count() -> None:
    digests = []
    for calibration in (1.0, 1.0, 2.0):
        torch.manual_seed(0)
        digests.append(model_digest(_WithState(calibration)))
    assert digests[0] == digests[1] != digests[2]


def test_code_that_cannot_be_read_is_never_the_same() -> None:
    typed = type("Typed", (nn.Linear,), {"__module__": "__typed__"})(2, 2)
    assert model_digest(typed) != model_digest(typed)
