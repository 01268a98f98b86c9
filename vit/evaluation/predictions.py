"""A model's logits for every sample, from which metrics and comparisons are computed.

They are stored as one `.npz` without pickle, so that comparing two models needs neither of them.
"""

from __future__ import annotations

import csv
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vit.data.splits import ImageSource
from vit.evaluation.examples import confidences
from vit.runs import replace_atomically

_DAMAGED = (
    ValueError,
    KeyError,
    EOFError,
    OSError,
    AttributeError,
    AssertionError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)
"""Errors of NumPy, zipfile and `Predictions` on a file that is damaged or another kind of file."""
_ARRAYS = ("indices", "labels", "logits", "class_names", "num_total", "num_broken")


@dataclass(frozen=True, eq=False)
class Predictions:
    """The logits of every sample seen, in the order of the source.

    indices int64 (n,), strictly increasing; labels int64 (n,) in [0, k); logits float32 (n, k);
    `class_names` has k entries. Of `num_total` samples in the split `num_broken` could not be read.
    """

    indices: NDArray[np.int64]
    labels: NDArray[np.int64]
    logits: NDArray[np.float32]
    class_names: list[str]
    num_total: int
    num_broken: int
    fingerprint: str = ""
    """Fingerprint of the evaluated images, names and labels (`vit.data.splits`); empty: unknown, equal to none."""

    def __post_init__(self) -> None:
        num_seen, num_classes = self.logits.shape
        assert self.indices.shape == self.labels.shape == (num_seen,), "one index and one label a row of logits"
        assert self.indices.dtype == self.labels.dtype == np.int64, "indices and labels are int64"
        assert self.logits.dtype == np.float32, f"logits are float32, not {self.logits.dtype}"
        assert num_classes == len(self.class_names), f"{num_classes} logits, {len(self.class_names)} class names"
        assert bool((np.diff(self.indices) > 0).all()), "indices must be strictly increasing"
        assert num_seen == 0 or 0 <= self.labels.min() <= self.labels.max() < num_classes, "a label has no logit"

    def save(self, path: str | Path) -> None:
        """Write the `.npz` file; an existing one is replaced only once the new one is complete."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(
                file,
                indices=self.indices,
                labels=self.labels,
                logits=self.logits,
                class_names=np.array(self.class_names, dtype=np.str_),
                num_total=np.int64(self.num_total),
                num_broken=np.int64(self.num_broken),
                fingerprint=np.str_(self.fingerprint),
            )

    @classmethod
    def load(cls, path: str | Path) -> Predictions:
        """Read a file that `save` wrote. ValueError if it is missing, damaged or another kind of file."""
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"predictions: {str(path)!r} is not a file")
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in _ARRAYS}
                fingerprint = str(stored["fingerprint"]) if "fingerprint" in stored else ""
            return cls(
                indices=arrays["indices"],
                labels=arrays["labels"],
                logits=arrays["logits"],
                class_names=arrays["class_names"].tolist(),
                num_total=int(arrays["num_total"]),
                num_broken=int(arrays["num_broken"]),
                fingerprint=fingerprint,
            )
        except _DAMAGED as error:
            raise ValueError(f"predictions: {str(path)!r} is not a complete predictions file ({error})") from error


def write_table(path: Path, predictions: Predictions, source: ImageSource) -> None:
    """A CSV file, the most confident mistakes first: file, true class, predicted class and its probability."""
    probabilities = confidences(predictions.logits)
    predicted = predictions.logits.argmax(axis=1)
    order = np.lexsort((-probabilities, predicted == predictions.labels))
    with (
        replace_atomically(path) as unfinished,
        unfinished.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,  # names of any bytes
    ):
        rows = csv.writer(file)
        rows.writerow(("file", "true", "predicted", "probability"))
        for row in order.tolist():
            true, found = (predictions.class_names[classes[row]] for classes in (predictions.labels, predicted))
            rows.writerow((source.name(int(predictions.indices[row])), true, found, f"{probabilities[row]:.4f}"))
