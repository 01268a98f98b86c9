"""Every command that takes a model with every kind of source: the calls and their outcomes.

`python -m tests.cli.every_source` prints the table. Models are tiny and their weights random.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

from tests.tasks.multilabel.tiny_run import write_config, write_set
from tests.training.tiny import tiny
from vit import create_model
from vit.cli import main
from vit.config import Preprocessing
from vit.training.loop import train
from vit.weights.convert import convert_model

FAKE = ["--data", "fake", "--data.fake_images", "60", "--data.fake_classes", "3", "--data.workers", "0"]
SAID = ["--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5"]
NAMES = ["pattern 0", "pattern 1", "pattern 2"]
SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
SOURCES = (
    *("run", "checkpoint", "file, ours", "file, timm's", "file, torchvision's", "timm folder", "hf folder"),
    *("hf folder, headless", "timm:NAME", "timm:NAME, theirs", "torchvision:NAME", "architecture", "function"),
    *("timm folder, a ViT of theirs", "hf folder, a ViT of theirs", "multi-label run", "multi-label run, own images"),
)
"""Kinds of sources."""


def build() -> tuple[nn.Module, Preprocessing, list[str]]:
    """A user's own model, opened as `tests.cli.every_source:build`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
    return model, Preprocessing(image_size=(16, 16)), NAMES


def make_sources(folder: Path) -> dict[str, list[str]]:
    """Kind → the words on the command line."""
    train(tiny(train={"epochs": 1, "precision": "fp32"}, data={"fake_images": 60}), folder / "run")
    (checkpoint,) = (folder / "run" / "checkpoints").iterdir()
    torch.manual_seed(0)
    ours = create_model("vit", num_classes=3, depth=6)
    save_file(ours.state_dict(), folder / "ours.safetensors")
    for layout in ("timm", "torchvision"):
        save_file(convert_model(ours, layout).tensors, folder / f"{layout}.safetensors")
    small = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=3, embed_dim=24, num_heads=2)
    args = {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2}
    config = {"num_classes": 3, "label_names": NAMES}
    save_for_hf(small, folder / "timm", model_config=config, model_args=args, safe_serialization=True)
    flexible = {"embed_dim": 24, "depth": 4, "num_heads": 2, "patch_size": 8}
    theirs = timm.create_model("naflexvit_base_patch16_parfac_gap", num_classes=3, **flexible)
    save_for_hf(theirs, folder / "flexible", model_config=config, model_args=flexible, safe_serialization=True)
    _make_huggingface(folder)
    multilabel = _make_multilabel(folder)
    named = ["--architecture", "vit", *SAID, "--class_names", *NAMES]
    return {
        "run": [str(folder / "run")],
        "checkpoint": [str(checkpoint)],
        "file, ours": [str(folder / "ours.safetensors"), *named],
        "file, timm's": [str(folder / "timm.safetensors"), *named],
        "file, torchvision's": [str(folder / "torchvision.safetensors"), *named],
        "timm folder": [str(folder / "timm")],
        "hf folder": [f"hf:{folder / 'hf'}"],
        "hf folder, headless": [f"hf:{folder / 'headless'}", *SAID],
        "timm:NAME": ["timm:test_vit", "--random_weights"],
        "timm:NAME, theirs": ["timm:test_byobnet", "--random_weights"],
        "torchvision:NAME": ["torchvision:resnet18", "--random_weights", "--image_size", "32"],
        "architecture": ["vit_tiny_patch16_32"],
        "function": ["tests.cli.every_source:build"],
        "timm folder, a ViT of theirs": [str(folder / "flexible"), "--image_size", "32"],
        "hf folder, a ViT of theirs": [f"hf:{folder / 'native'}", *SAID, "--image_size", "28"],
        "multi-label run": [multilabel],
        "multi-label run, own images": [multilabel],
    }


def _make_huggingface(folder: Path) -> None:
    from transformers import Aimv2VisionConfig, Aimv2VisionModel, Dinov2Config, Dinov2Model, ViTForImageClassification
    from transformers import ViTConfig as HuggingFaceConfig

    classifier = HuggingFaceConfig(**SIZES, intermediate_size=32, id2label=dict(enumerate(NAMES)))
    ViTForImageClassification(classifier).save_pretrained(folder / "hf")
    processor = {"size": {"height": 28, "width": 28}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "hf" / "preprocessor_config.json").write_text(json.dumps(processor))
    Dinov2Model(Dinov2Config(**SIZES)).save_pretrained(folder / "headless")
    native = Aimv2VisionConfig(**SIZES, intermediate_size=32, is_native=True)  # sines of other frequencies than ours
    Aimv2VisionModel(native).save_pretrained(folder / "native")


def _make_multilabel(folder: Path) -> str:
    write_set(folder / "tables")
    settings = write_config(folder / "tables", train={"epochs": 1, "precision": "fp32"})
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["train", "--config", str(settings), "--output_dir", str(folder / "multilabel")]) == 0
    return str(folder / "multilabel")


def make_images(folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return [str(folder / "a.png"), str(folder / "b.png")]


Words = Callable[[list[str], Path, list[str]], list[str]]
"""A command's arguments, from those of the model, a folder for results and two images."""
COMMANDS: dict[str, Words] = {
    "analyze": lambda model, out, images: [
        *("analyze", *model, "--data", *images, "--output_dir", str(out / "analysis"), "--device", "cpu"),
        *("--figures", "position_similarity", "patch_filters", "attention_entropy"),
    ],
    "compare": lambda model, out, _: [
        *("compare", model[0], "tests.cli.every_source:build", *model[1:], *FAKE, "--images", "6"),
        *("--output_dir", str(out), "--device", "cpu"),
    ],
    "eval": lambda model, out, _: ["eval", *model, *FAKE, "--output_dir", str(out), "--device", "cpu"],
    "eval --transfer": lambda model, out, _: [
        *("eval", *model, "--transfer", *FAKE, "--output_dir", str(out), "--device", "cpu")
    ],
    "compare --transfer": lambda model, out, _: [
        *("compare", model[0], "tests.cli.every_source:build", *model[1:], "--transfer", *FAKE, "--images", "6"),
        *("--output_dir", str(out), "--device", "cpu"),
    ],
    "predict": lambda model, _, images: ["predict", model[0], *images, *model[1:], "--device", "cpu"],
    "export": lambda model, out, _: ["export", *model, "--format", "torch", "--output", str(out / "model.pt2")],
    "doctor": lambda model, _out, _images: ["doctor", *model, *FAKE, "--images", "6", "--device", "cpu"],
    "convert": lambda model, out, _: ["convert", *model, "--to", "timm", "--output", str(out / "model.safetensors")],
}
"""Those that name the images."""
ON_OWN_IMAGES: dict[str, Words] = {
    "analyze": lambda run, out, _: [
        *("analyze", *run, "--images", "5", "--figures", "position_similarity"),
        *("--output_dir", str(out), "--device", "cpu"),
    ],
    "compare": lambda run, out, _: ["compare", *run, *run, "--output_dir", str(out), "--device", "cpu"],
    "eval": lambda run, out, _: ["eval", *run, "--output_dir", str(out), "--device", "cpu"],
    "eval --transfer": lambda run, out, _: [
        *("eval", *run, "--transfer", "--output_dir", str(out), "--device", "cpu"),
    ],
    "compare --transfer": lambda run, out, _: [
        *("compare", *run, *run, "--transfer", "--output_dir", str(out), "--device", "cpu"),
    ],
    "doctor": lambda run, _out, _images: ["doctor", *run, "--images", "6", "--device", "cpu"],
}
"""The same on the images that a run was tested on."""


def run_cell(kind: str, command: str, model: Sequence[str], folder: Path) -> tuple[int, str]:
    """The exit code and what was said on standard error. A traceback is raised."""
    commands = COMMANDS | ON_OWN_IMAGES if "own images" in kind else COMMANDS
    words = commands[command](list(model), folder, make_images(folder / "images"))
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    return code, said.getvalue()


def table(folder: Path) -> str:
    """Every cell as Markdown: `ok`, or the number of the line that refuses it, with the lines below."""
    sources, refusals = make_sources(folder / "sources"), dict[str, int]()
    lines = [f"| source | {' | '.join(COMMANDS)} |", f"|---|{'---|' * len(COMMANDS)}"]
    for place, kind in enumerate(SOURCES):
        cells = []
        for command in COMMANDS:
            code, said = run_cell(kind, command, sources[kind], folder / f"{place} {command}")
            refusal = said.strip().splitlines()[-1].replace(str(folder), "…") if code else ""
            cells.append(f"{code}: {refusals.setdefault(refusal, len(refusals) + 1)}" if code else "ok")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. `{line}`" for line, number in refusals.items())])


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        sys.stdout.write(table(Path(place)) + "\n")
