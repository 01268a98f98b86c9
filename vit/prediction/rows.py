"""A row of the table: an image with its likeliest classes, or with the reason why it could not be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vit.config import check
from vit.hub import OpenedModel

Classes = tuple[tuple[str, float], ...]
"""Names with probabilities, likeliest first."""
_MOST_CLASSES = 5
"""For an image that has one class."""


@dataclass(frozen=True)
class Row:
    """One image."""

    file: str
    classes: Classes = ()
    error: str = ""
    """Why it could not be read; empty for an image that was."""

    def as_dict(self) -> dict[str, Any]:
        classes = [{"class": name, "probability": probability} for name, probability in self.classes]
        return {"file": self.file, "classes": classes, "error": self.error or None}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Row:
        classes = tuple((each["class"], each["probability"]) for each in content["classes"])
        return cls(content["file"], classes, content["error"] or "")

    def line(self) -> str:
        """The row as a line of JSON; a file name that is no text keeps its bytes."""
        return json.dumps(self.as_dict(), ensure_ascii=True) + "\n"


def check_finite(opened: OpenedModel, names: Sequence[str], logits: Tensor) -> None:
    """ValueError that names the first image whose logits (n, k) are not finite."""
    finite = logits.isfinite().all(dim=1).tolist()
    for name, is_finite in zip(names, finite, strict=True):
        check(is_finite, "model", opened.source, f"its logits for {name} are infinite or NaN")


def most_classes(opened: OpenedModel, top_k: int | None) -> int:
    """How many classes an image gets at most: `top_k`, else five, or all of a multi-label model."""
    most = opened.num_classes if opened.multilabel else _MOST_CLASSES
    return min(most if top_k is None else top_k, opened.num_classes)


def likeliest(opened: OpenedModel, logits: Tensor, top_k: int) -> list[Classes]:
    """For each image, logits (n, k), at most so many classes with their probabilities, likeliest first; of classes with
    the same logit, the one of the lower number.

    A softmax over the classes; of a multi-label model, the classes whose own probability reaches their threshold.
    """
    names = opened.class_names or [f"class {number}" for number in range(opened.num_classes)]
    probabilities = logits.double().sigmoid() if opened.multilabel else logits.softmax(dim=1)
    if opened.multilabel:
        reached = probabilities >= torch.tensor(opened.thresholds, dtype=torch.float64)
        probabilities = probabilities.where(reached, -1.0)
        logits = logits.where(reached, -torch.inf)
    # probabilities of different logits may round to the same number, and `topk` leaves the order of equal ones open
    indices = logits.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    values = probabilities.gather(1, indices)
    return [
        tuple((names[index], value) for value, index in zip(row, order, strict=True) if value >= 0.0)
        for row, order in zip(values.tolist(), indices.tolist(), strict=True)
    ]
