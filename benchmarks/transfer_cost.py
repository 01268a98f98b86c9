"""Time and memory of `vit eval MODEL --transfer` beside the usual loop with timm and scikit-learn: whole processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.whole_process import run_process
from vit.processor import machine

CONVENTIONS = {
    "seconds": "wall time of the whole process, imports included",
    "features": "seconds of reading the images and computing features: ours is the whole process minus one that finds "
    "them stored, plain is its own clock, imports left out",
    "memory": "largest resident memory of the process in GiB",
    "ours": "vit eval --transfer: k-NN, few-shot (1, 5, 10, 25 images a class) and linear probe",
    "plain": "benchmarks/plain_transfer.py: timm, under autocast where the processor multiplies bfloat16, DataLoader, "
    "scikit-learn's k-NN and linear probe with the same strengths; no few-shot",
}
_VIT = (sys.executable, "-m", "vit.cli")


def bench_transfer(
    source: str, timm_name: str, data: Path, num_train: int, num_test: int, image_size: int, turns: int
) -> dict[str, Any]:
    """Both sides in turns on `data/train` and `data/test`, from the same weights. RuntimeError if a side fails."""
    sides: dict[str, list[dict[str, float]]] = {"ours": [], "plain": []}
    accuracies: dict[str, Any] = {}
    with TemporaryDirectory() as place:
        weights = Path(place) / "timm.safetensors"
        run_process([*_VIT, "convert", source, "--to", "timm", "--output", str(weights)])
        for turn in range(turns):
            folder = Path(place) / f"turn{turn}"
            sizes = f"--train_images {num_train} --images {num_test} --image_size {image_size}".split()
            ours = [*_VIT, "eval", source, "--transfer", "--features", "head", "--data", str(data), *sizes]
            measured, printed = run_process([*ours, "--output_dir", str(folder)])
            stored = list(folder.glob("features/*/head-*-*.safetensors"))
            if not stored:
                raise RuntimeError(f"vit eval --transfer stored no predictions in {folder / 'features'}")
            for predictions in stored:
                predictions.unlink()
            without, _ = run_process([*ours, "--output_dir", str(folder)])
            sides["ours"].append(measured | {"features": measured["seconds"] - without["seconds"]})
            record = json.loads(printed[printed.index("{") :])
            accuracies["ours"] = {key: value for key, value in record.items() if key.startswith("transfer")}
            plain = [sys.executable, "-m", "benchmarks.plain_transfer", timm_name, str(weights)]
            plain += [str(data / "train"), str(data / "test"), str(num_train), str(num_test), str(image_size)]
            measured, printed = run_process(plain)
            accuracies["plain"] = json.loads(printed.splitlines()[-1])
            sides["plain"].append(measured | {"features": accuracies["plain"]["seconds"]["features"]})
    return {"sides": sides, "accuracies": accuracies, "machine": machine("cpu", ("timm",)), "conventions": CONVENTIONS}
