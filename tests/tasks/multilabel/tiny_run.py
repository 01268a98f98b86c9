"""Tables of small images, and the settings of a run on them that takes a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLORS = {"red": 0, "green": 1, "blue": 2}


def write_set(root: Path, count: int = 48) -> None:
    """Images whose labels are the colour channels that are bright: none, one or several."""
    root.mkdir(exist_ok=True)
    for part in ("train", "test"):
        lines = ["file,labels"]
        for index in range(count):
            bits = np.random.default_rng([index, part == "test"]).integers(0, 2, 3)
            noise = np.random.default_rng(index + 1000 * (part == "test"))  # no image in both
            pixels = noise.integers(0, 60, (8, 8, 3)) + 180 * bits
            name = f"{part}_{index}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(root / name)
            lines.append(f"{name},{';'.join(color for color, place in COLORS.items() if bits[place])}")
        (root / f"{part}.csv").write_text("\n".join(lines) + "\n")


def write_config(root: Path, **changes: Any) -> Path:
    settings = {
        "task": "multilabel",
        "model": {"name": "vit", "image_size": 8, "patch_size": 4, "width": 32, "depth": 1, "num_heads": 2},
        "data": {"root": str(root), "batch_size": 8, "workers": 0, "val_fraction": 0.25},
        "augment": {"mixup_alpha": 0.2, "mix_group": 4},
        "optim": {"lr": 0.003},
        "train": {"epochs": 6, "precision": "fp32"},
    }
    path = root / "run.json"
    path.write_text(json.dumps({**settings, **changes}))
    return path
