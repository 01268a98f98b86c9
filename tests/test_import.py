"""What an import costs: nothing heavy before it is needed, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torchvision", "timm", "sklearn", "matplotlib", "accelerate", "transformers", "scipy", "onnx", "torch._dynamo")


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def loaded_by(code: str) -> set[str]:
    say = f"import json, sys; print(json.dumps([name for name in {(*HEAVY, 'torch')!r} if name in sys.modules]))"
    return set(json.loads(in_a_new_process(f"{code}\n{say}")))


def test_the_package_alone_imports_not_even_torch() -> None:
    assert loaded_by("import vit, vit.cli, vit.settings") == set()


def test_making_a_model_imports_torch_and_nothing_else_that_is_heavy() -> None:
    assert loaded_by("from vit import create_model; create_model('vit_tiny_patch16_224')") == {"torch"}


def test_what_trains_imports_no_figures_and_no_other_models() -> None:
    assert loaded_by("import vit.training.loop") == {"torch", "accelerate"}


@pytest.mark.slow
@pytest.mark.timed
def test_the_package_adds_little_to_torch() -> None:
    """0.3 s are wanted; of the processor's time, which other programs disturb less. The fastest of five counts."""
    code = "import time, torch; t = time.process_time(); from vit import create_model; print(time.process_time() - t)"
    assert min(float(in_a_new_process(code)) for _ in range(5)) < 0.4
