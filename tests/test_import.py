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


def test_packages_that_export_lazily_import_not_even_torch() -> None:
    packages = "vit.analysis, vit.attention, vit.comparison, vit.evaluation, vit.figures, vit.hub, vit.weights"
    assert loaded_by(f"import {packages}") == set()


def test_matplotlib_comes_with_the_first_figure() -> None:
    code = (
        "import torch; from vit import create_model; from vit.analysis import patch_filters, mean_attention_distance\n"
        "found = patch_filters(create_model('vit_tiny_patch16_224'))\n"
    )
    assert "matplotlib" not in loaded_by(code)
    assert "matplotlib" in loaded_by(f"{code}found.plot()")


def test_making_a_model_imports_torch_and_nothing_else_that_is_heavy() -> None:
    assert loaded_by("from vit import create_model; create_model('vit_tiny_patch16_224')") == {"torch"}


def test_what_trains_imports_no_figures_and_no_other_models() -> None:
    assert loaded_by("import vit.training.loop") == {"torch", "accelerate"}


@pytest.mark.timed
def test_the_package_adds_little_to_torch() -> None:
    """0.3 s are wanted; of the processor's time, which other programs disturb less. The fastest of five counts."""
    code = "import time, torch; t = time.process_time(); from vit import create_model; print(time.process_time() - t)"
    assert min(float(in_a_new_process(code)) for _ in range(5)) < 0.4
