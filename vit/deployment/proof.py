"""Whether an exported file answers as its model does: both are asked about the same images, one at a time.

An image is decoded once. The model gets it by the preprocessing of `vit eval`, the file as it takes its input.
"""

from __future__ import annotations

import math
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vit.data.decoding import BrokenImage
from vit.data.splits import Split
from vit.deployment.errors import Unfaithful
from vit.evaluation.statistics import paired_share_interval
from vit.progress import progress_bar
from vit.runs import replace_atomically

Answers = NDArray[np.float32]
Answer = Callable[[Image.Image], Answers]
"""An RGB image to what the file gives for it, (k,): probabilities, or logits."""
_SECONDS_BETWEEN_SAVES = 20.0
CONVENTIONS = {
    "top1": "share of images whose most likely class is right; of any number of labels, whose every label is",
    "difference": "accuracy of the file less that of the model on the same images; 95 % interval by Agresti and Min",
    "agreement": "share of images for which both give the same classes",
    "seconds": "median for one image, decoding left out",
}


@dataclass(frozen=True)
class Proof:
    """The outcome of the comparison on images."""

    images: str
    """Which they were."""
    num_images: int
    num_broken: int
    model_top1: float
    file_top1: float
    interval: tuple[float, float]
    agreement: float
    largest_difference: float
    """Largest difference of a probability, or of a logit where the file gives logits."""
    model_seconds: float
    file_seconds: float

    @property
    def difference(self) -> float:
        return self.file_top1 - self.model_top1

    def text(self) -> str:
        low, high = self.interval
        top1 = f"accuracy {self.file_top1:.2%}, the model's {self.model_top1:.2%}"
        broken = f" ({self.num_broken:,} more cannot be read)" if self.num_broken else ""
        return (
            f"{self.num_images:,} {self.images}{broken}: {top1} "
            f"(difference {100 * self.difference:+.2f} points, 95 % interval {100 * low:+.2f} to {100 * high:+.2f}); "
            f"the same class for {self.agreement:.2%}; largest difference {self.largest_difference:.1e}; "
            f"{1000 * self.file_seconds:.1f} ms an image, the model {1000 * self.model_seconds:.1f}"
        )

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"difference": self.difference, "conventions": CONVENTIONS}

    def check(self, tolerance: float) -> None:
        """Unfaithful where the file's accuracy is further from the model's than `tolerance`, a fraction, and where an
        answer is infinite or NaN.
        """
        if not math.isfinite(self.largest_difference):
            raise Unfaithful(
                f"export: the file or the model gives infinite values or NaN, and was not kept: {self.text()}"
            )
        if abs(self.difference) > tolerance:
            single = 1 / self.num_images
            few = f", and a single image is {100 * single:.2f}: more of them are needed (--data)"
            raise Unfaithful(
                f"export: the file answers otherwise than the model, and was not kept: {self.text()}; "
                f"at most {100 * tolerance:g} points are allowed (--tolerance){few if single > tolerance else ''}"
            )


@dataclass(frozen=True)
class Decision:
    """How answers become classes."""

    columns: Sequence[int]
    """The head's outputs for the data's classes, in their order."""
    thresholds: NDArray[np.float32] | None = None
    """Thresholds of a model that gives an image any number of labels, in the data's order; None: the largest answer
    counts."""

    def predicted(self, answers: Answers) -> NDArray[np.int64]:
        """(n, k) answers to (n,) classes, or (n, k) of 0 and 1."""
        chosen = answers[:, list(self.columns)]
        if self.thresholds is None:
            return chosen.argmax(axis=1)
        return (chosen >= self.thresholds).astype(np.int64)


def prove(
    model: Answer, file: Answer, split: Split, decision: Decision, *, images: str, progress: Path, key: str
) -> Proof:
    """Compare the answers for every image of the split.

    What was answered is kept in the file `progress` now and then, and when this is interrupted; another call with the
    same `key` continues there. ValueError where no image can be read.
    """
    done = _Done.read(progress, key)
    try:
        with progress_bar("file against model", len(split), unit="img", done=done.count) as bar:
            saved = time.monotonic()
            for index in split.indices.tolist()[done.count :]:
                try:
                    image = split.source.read(index)
                except BrokenImage:
                    done.broken.append(index)
                else:
                    done.add(index, model, file, image)
                bar.update(1)
                if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
                    done.write(progress, key)
                    saved = time.monotonic()
    except BaseException:
        done.write(progress, key)
        raise
    progress.unlink(missing_ok=True)
    if not done.indices:
        raise ValueError(f"--data: none of the {len(split)} images can be read")
    return _proof(done, split, decision, images)


class _Done:
    """The answers so far."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.broken: list[int] = []
        self.answers: tuple[list[Answers], list[Answers]] = ([], [])
        self.seconds: tuple[list[float], list[float]] = ([], [])

    @property
    def count(self) -> int:
        return len(self.indices) + len(self.broken)

    def add(self, index: int, model: Answer, file: Answer, image: Image.Image) -> None:
        found, seconds = [], []
        for answer in (model, file):
            begun = time.perf_counter()
            found.append(answer(image))
            seconds.append(time.perf_counter() - begun)
        for side in (0, 1):
            self.answers[side].append(found[side])
            self.seconds[side].append(seconds[side])
        self.indices.append(index)

    def write(self, path: Path, key: str) -> None:
        arrays = {f"answers_{side}": np.array(self.answers[side], dtype=np.float32) for side in (0, 1)}
        arrays |= {f"seconds_{side}": np.array(self.seconds[side]) for side in (0, 1)}
        with replace_atomically(path) as unfinished, unfinished.open("wb") as stream:
            numbers = {"indices": np.array(self.indices, int), "broken": np.array(self.broken, int)}
            np.savez(stream, allow_pickle=False, key=np.array(key), **numbers, **arrays)

    @classmethod
    def read(cls, path: Path, key: str) -> _Done:
        """Nothing where there is no such file, it is damaged, or it is of something else."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays = dict(stored) if str(stored["key"]) == key else None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            arrays = None
        done = cls()
        if arrays is not None:
            done.indices, done.broken = arrays["indices"].tolist(), arrays["broken"].tolist()
            done.answers = list(arrays["answers_0"]), list(arrays["answers_1"])
            done.seconds = arrays["seconds_0"].tolist(), arrays["seconds_1"].tolist()
        return done


def _proof(done: _Done, split: Split, decision: Decision, images: str) -> Proof:
    answers = [np.stack(side) for side in done.answers]
    labels = split.source.labels[done.indices].numpy()
    predicted = [decision.predicted(side) for side in answers]
    model_right, file_right = (_all_labels(each == labels) for each in predicted)
    only_file, only_model = (file_right & ~model_right).sum(), (model_right & ~file_right).sum()
    low, high = paired_share_interval(*(np.array([float(n)]) for n in (only_file, only_model, len(labels))))
    return Proof(
        images=images,
        num_images=len(labels),
        num_broken=len(done.broken),
        model_top1=float(model_right.mean()),
        file_top1=float(file_right.mean()),
        interval=(float(low[0]), float(high[0])),
        agreement=float(_all_labels(predicted[0] == predicted[1]).mean()),
        largest_difference=float(np.abs(answers[0] - answers[1]).max()),
        model_seconds=float(np.median(done.seconds[0])),
        file_seconds=float(np.median(done.seconds[1])),
    )


def _all_labels(right: NDArray[np.bool_]) -> NDArray[np.bool_]:
    every: NDArray[np.bool_] = right if right.ndim == 1 else np.all(right, axis=1)
    return every
