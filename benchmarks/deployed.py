"""Accuracy of a trained classifier on its way into production, on all test images of a data set.

The model in float32 is compared, on the same images, with its copies of `for_inference` (bfloat16, eight bits), which
read images in batches, and with the files of `vit export` (ONNX, ONNX in eight bits), which get one image at a time.
On request each layer is quantised alone as well, on validation images.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.timing import ProgressFn
from vit.analysis import quantization_sensitivity
from vit.config import DataConfig
from vit.data.images import fingerprint, open_test, open_training
from vit.data.loading import EvalLoader
from vit.data.splits import Split, balanced_subset
from vit.deployment import Decision, Trial
from vit.deployment.export import export_classifier
from vit.evaluation.evaluate import collect_outputs
from vit.evaluation.head_columns import head_columns
from vit.evaluation.statistics import paired_share_interval
from vit.hub import OpenedModel, open_model
from vit.models.inference import for_inference
from vit.models.model import Model
from vit.processor import HAS_VNNI, machine

COPIES: dict[str, Any] = {"vit bf16": torch.bfloat16, "vit int8": "int8"}
FILES: dict[str, Literal["auto", "int8"]] = {"ONNX": "auto", "ONNX int8": "int8"}
CONVENTIONS = {
    "top1": "share of the test images whose most likely class is right",
    "difference": "top1 less that of the model in float32, on the same images",
    "interval": "of the difference, 95 %, paired (Agresti and Min 2005)",
    "agreement": "share of the images of which both predict the same class",
}


def measure_deployed(
    model: str,
    data: DataConfig,
    *,
    images: int | None = None,
    sensitivity: int = 0,
    progress: ProgressFn = lambda _: None,
    **options: Any,
) -> dict[str, Any]:
    """Accuracy of every form of the model on the data's test images, or on about `images` of them.

    `sensitivity`: of how many validation images each layer's share is measured; 0: it is not. `options` are those of
    `open_model`. ValueError for a model that has no eight bits, and for classes that are not the data's.
    """
    opened = open_model(model, **options)
    whole_model = opened.model
    if not isinstance(whole_model, Model):
        raise ValueError(f"model: {model!r} is not valid: it is computed by {opened.implementation}, not by vit")
    split = balanced_subset(open_test(data), images, stream="deployed")
    columns = head_columns(opened, split.source.class_names)

    def answers(compute: Callable[[Tensor], Tensor], part: Split) -> tuple[Tensor, Tensor]:
        """Labels (n,) and logits (n, classes of the data)."""
        loader = EvalLoader(part, opened.preprocessing, data)
        _, labels, logits = collect_outputs(nn.Identity(), compute, loader, device=torch.device("cpu"))
        return labels, logits[:, columns]

    labels, logits = answers(whole_model, split)
    whole = logits.argmax(dim=1)
    progress(f"float32: {float((whole == labels).double().mean()):.2%} of {len(labels):,} images")
    rows = {}
    for name, dtype in COPIES.items():
        predicted = answers(_taking_float32(for_inference(whole_model, dtype)), split)[1].argmax(dim=1)
        rows[name] = _compare(predicted, whole, labels)
        progress(line(name, rows[name]))
    for name, dtype in FILES.items():
        rows[name] = _by_file(open_model(model, dtype=dtype, **options), split, columns)
        progress(line(name, rows[name]))
    result = {
        "model": opened.source,
        "weights": opened.identity,
        "images": len(labels),
        "data": fingerprint(split),
        "top1": float((whole == labels).double().mean()),
        "forms": rows,
        "machine": {**machine("cpu", ("onnxruntime",)), "multiplies_bytes": HAS_VNNI},
        "conventions": CONVENTIONS,
    }
    if sensitivity:
        part = balanced_subset(open_training(data)[1], sensitivity, stream="sensitivity")
        result["sensitivity"] = _layer_sensitivity(whole_model, lambda each: answers(each, part), progress)
    return result


def _layer_sensitivity(
    model: Model, answers: Callable[[Callable[[Tensor], Tensor]], tuple[Tensor, Tensor]], progress: ProgressFn
) -> dict[str, Any]:
    """Measure what each layer alone costs in eight bits; `answers` gives labels and logits of a model."""
    found = quantization_sensitivity(
        model,
        lambda each: answers(each)[1],
        answers(model)[0],
        progress=lambda done, total: progress(f"layers alone in eight bits: {done} of {total}"),
    )
    return found.numbers()


def line(name: str, row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return (
        f"{name}: {row['top1']:.2%} ({100 * row['difference']:+.2f} points, {100 * low:+.2f} to {100 * high:+.2f}), "
        f"the same class for {row['agreement']:.2%}"
    )


def _taking_float32(model: Model) -> Callable[[Tensor], Tensor]:
    dtype = next((each.dtype for each in model.parameters()), torch.float32)
    return lambda images: model(images.to(dtype))


def _compare(predicted: Tensor, whole: Tensor, labels: Tensor) -> dict[str, Any]:
    right, whole_right = predicted == labels, whole == labels
    only, only_whole = (float((one & ~other).sum()) for one, other in ((right, whole_right), (whole_right, right)))
    low, high = paired_share_interval(*(np.array([number]) for number in (only, only_whole, float(len(labels)))))
    return {
        "top1": float(right.double().mean()),
        "difference": (only - only_whole) / len(labels),
        "interval": [float(low[0]), float(high[0])],
        "agreement": float((predicted == whole).double().mean()),
    }


def _by_file(opened: OpenedModel, split: Split, columns: list[int]) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        trial = Trial(split, Decision(columns), "test images", tolerance=1.0)  # every loss is recorded
        proof = export_classifier(opened, "onnx", Path(folder) / "model.onnx", trial=trial).proof
    assert proof is not None
    return {
        "top1": proof.file_top1,
        "difference": proof.difference,
        "interval": list(proof.interval),
        "agreement": proof.agreement,
    }
