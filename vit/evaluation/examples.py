"""Which images show what a classifier does: its most confident mistakes and right predictions, of all classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CONVENTION = "most confident first, and the first of every class before the second of any; classes are the true ones"


def across_classes(order: Sequence[int], classes: Sequence[int], count: int) -> list[int]:
    """Choose `count` of the rows in `order`: the first of every class, then the second, and so on.

    classes: of all rows, by row.
    """
    turns: Counter[int] = Counter()
    ranked = []
    for place, row in enumerate(order):
        ranked.append((turns[classes[row]], place, row))
        turns[classes[row]] += 1
    return [row for _, _, row in sorted(ranked)[:count]]


def most_confident(logits: NDArray[np.float32], labels: NDArray[np.int64], *, right: bool, count: int) -> list[int]:
    """The rows of at most `count` right or wrong predictions, as `CONVENTION` says; logits n k, labels n."""
    rows = np.flatnonzero((logits.argmax(axis=1) == labels) == right)
    order = rows[np.argsort(-confidences(logits[rows]), kind="stable")]
    return across_classes(order.tolist(), labels.tolist(), count)


def confidences(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """The probability of the predicted class of each row, n k → n."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(1 / np.exp(shifted).sum(axis=1))
