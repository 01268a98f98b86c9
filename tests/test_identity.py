"""A model's identity changes with everything that its logits depend on, and with nothing else."""

from __future__ import annotations

import copy
import importlib
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import ViTConfig
from vit.hub import identity, model_digest, open_model
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


def test_what_changes_no_logits_does_not_count() -> None:
    digest = model_digest(_built())
    assert digest == model_digest(_built().eval()) == model_digest(copy.deepcopy(_built()))
    rates = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate", "patch_dropout_rate")
    others: list[dict[str, Any]] = [{"backend": "reference"}, {"init": "normal"}, *({rate: 0.1} for rate in rates)]
    for changes in others:
        assert model_digest(_built(**changes)) == digest, changes
    model = _built().eval()
    model(torch.zeros(1, 3, 16, 16))
    assert model_digest(model) == digest


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


class _Odd(nn.Linear):
    """A layer whose result depends on what is no weight."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.function: Any = F.gelu
        self.options = {"scale": 1.0}
        self._temperature = 1.0
        self.register_buffer("table", torch.ones(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(super().forward(x)) * self.options["scale"] / self._temperature * self.table


def _with(change: Callable[[_Odd], object]) -> _Odd:
    layer = _Odd()
    change(layer)
    return layer


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer, "_temperature", 2.0),
        lambda layer: setattr(layer, "function", torch.tanh),
        lambda layer: setattr(layer, "function", lambda x: 2 * x),
        lambda layer: layer.options.update(scale=2.0),
        lambda layer: layer.table.fill_(2.0),
        lambda layer: layer.register_forward_hook(lambda _module, _args, output: 2 * output),
        lambda layer: setattr(layer, "forward", lambda x: x),
    ],
    ids=["private number", "function", "lambda", "dictionary", "buffer", "hook", "own forward"],
)
def test_all_that_a_users_layer_computes_with_counts(change: Callable[[_Odd], object]) -> None:
    digest = model_digest(_Odd())
    assert model_digest(_with(change)) == model_digest(_with(change)) != digest
    odd = _Odd().eval()
    odd(torch.zeros(1, 2))
    assert model_digest(odd) == model_digest(copy.deepcopy(odd)) == digest


def test_graphs_are_told_apart_by_their_code() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Tripled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 3

    one, again, other = (torch.fx.symbolic_trace(module) for module in (Doubled(), Doubled(), Tripled()))
    assert model_digest(one) == model_digest(again) != model_digest(other)


_TYPED = """
import torch
from torch import nn
from vit.hub import model_digest
class Typed(nn.Linear):
    names = {"a", "b", "c"}
    def forward(self, x): return FORMULA
torch.manual_seed(0)
print(model_digest(Typed(2, 2)))
"""


def test_a_class_typed_into_an_interpreter_is_known_again_by_its_code() -> None:
    def digest(formula: str) -> str:
        words = [sys.executable, "-c", _TYPED.replace("FORMULA", formula)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    assert digest("x + 1") == digest("x + 1") != digest("x + 2")


def test_what_cannot_be_described_is_another_in_every_process() -> None:
    layer = _Odd()
    layer.function = operator.itemgetter(1)  # without attributes
    assert identity._UNKNOWN in identity._described(layer.function)
