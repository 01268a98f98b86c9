"""What each model answers to the images: from the output folder, from its run, or by asking it now.

Answers are stored model by model, so that a comparison that was stopped continues where it was. Those of the output
folder count only if weights, images, labels, preprocessing, precision and device are the same; those of a run if they
are of the same weights and images (it computed them with its own preprocessing, in its own precision) and no image file
has changed since. Computes no number from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from numpy.typing import NDArray
from tqdm import tqdm

from vit.config import DataConfig
from vit.data.folders import FolderSource
from vit.data.images import Split, fingerprint
from vit.data.loading import EvalLoader
from vit.evaluation.class_maps import NUM_CLASSES
from vit.evaluation.comparison.contestants import Contestant
from vit.evaluation.comparison.heads import spoken_names
from vit.evaluation.evaluate import predict
from vit.evaluation.predictions import Predictions
from vit.runs import write_json


@dataclass(frozen=True)
class Question:
    """The same images for every model. `name` begins the files that the answers are stored in."""

    name: str
    split: Split
    whole: Split
    """What `split` was chosen from; a run has answered all of it."""
    data: DataConfig
    folder: Path
    accelerator: Accelerator


@dataclass(frozen=True)
class Answered:
    predictions: Predictions
    """Of the data's classes only, in the data's order."""
    source: str
    """`run`, `stored` or `asked`."""
    unrestricted_top1: float | None = None
    """Part of the images where the label is first among all classes of a head that has more than the data."""
    answers_of_1000: NDArray[np.int64] | None = None
    """(n,) the classes that ImageNet's head finds likeliest; None for any other head."""


def answer(contestant: Contestant, columns: Sequence[int], question: Question) -> Answered:
    """The model's answers; `columns[k]` is the place of the data's class k in the model's head.

    ValueError as `predict` and the loader raise it.
    """
    of_run = _of_run(contestant, question)
    if of_run is not None:
        return _restricted(of_run, columns, question, "run")
    place = question.folder / f"{file_stem(contestant)}_{question.name}.npz"
    identity = identity_of(contestant, question)
    stored = _load_if_same(place, identity)
    if stored is not None:
        return _restricted(stored, columns, question, "stored")
    asked = predict_for(contestant, question)
    place.with_suffix(".json").unlink(missing_ok=True)  # never beside answers that it does not describe
    asked.save(place)
    write_json(place.with_suffix(".json"), identity)
    return _restricted(asked, columns, question, "asked")


def file_stem(contestant: Contestant) -> str:
    """What begins the names of a model's files, whatever it is compared with: its source's last part, its weights."""
    words = re.sub(r"[^\w.-]+", "_", contestant.source.rstrip("/").rpartition("/")[2])
    return f"{words}_{contestant.identity}"


def identity_of(contestant: Contestant, question: Question) -> dict[str, Any]:
    """What answers depend on."""
    settings = json.loads(json.dumps(asdict(contestant.preprocessing)))
    return {
        "model": contestant.source,
        "weights": contestant.identity,
        "images": fingerprint(question.split),
        "last_change": last_change(question.split),
        "preprocessing": settings,
        "precision": str(question.accelerator.mixed_precision),
        "device": question.accelerator.device.type,
    }


def last_change(split: Split) -> float:
    """When the newest of the images' files was written, in seconds; 0 for images that are no files."""
    if not isinstance(split.source, FolderSource):
        return 0.0
    return max((split.source.root / split.source.files[i]).stat().st_mtime for i in split.indices.tolist())


def _load_if_same(place: Path, identity: dict[str, Any]) -> Predictions | None:
    try:
        if json.loads(place.with_suffix(".json").read_text()) != identity:
            return None
        return Predictions.load(place)
    except (OSError, ValueError):  # never asked, or stopped while it was being written
        return None


def _of_run(contestant: Contestant, question: Question) -> Predictions | None:
    """The answers that a run left, at its end or by `vit eval`, if they are of these weights and these images."""
    if contestant.run is None or question.name != "test":
        return None
    whole = fingerprint(question.whole)
    folder = contestant.run / "predictions"
    for record, key in ((contestant.run / "summary.json", "best.step"), *((p, "step") for p in _records(folder))):
        file = folder / "test.npz" if key == "best.step" else record.with_suffix(".npz")
        try:
            step = json.loads(record.read_text()).get(key)
            found, written = Predictions.load(file), file.stat().st_mtime
        except (OSError, ValueError):
            continue
        if step == contestant.step and found.fingerprint == whole and last_change(question.split) <= written:
            return _choose(found, question.split)
    return None


def _records(folder: Path) -> list[Path]:
    """What `vit eval` stored with the default weights at the model's own size."""
    return sorted(folder.glob("*_auto.json"))


def _choose(found: Predictions, split: Split) -> Predictions:
    rows = np.isin(found.indices, split.indices.numpy())
    return replace(
        found,
        indices=found.indices[rows],
        labels=found.labels[rows],
        logits=found.logits[rows],
        num_total=len(split),
        num_broken=len(split) - int(rows.sum()),
        fingerprint=fingerprint(split),
    )


def predict_for(contestant: Contestant, question: Question, *, quiet: bool = False) -> Predictions:
    """Answers over the whole head, asked now; `labels` are the data's. `quiet`: no progress is shown."""
    accelerator = question.accelerator
    data = replace(question.data, cache_gib=0.0)  # a single pass
    loader = EvalLoader(question.split, contestant.preprocessing, data)
    names = contestant.class_names or [str(number) for number in range(contestant.num_classes)]
    model, what = contestant.model.to(accelerator.device), f"{contestant.name}, {question.name}"
    with tqdm(total=len(question.split), desc=what, disable=quiet or None, unit="img") as bar:

        def count(num_images: int) -> None:
            bar.update(num_images)

        found = predict(model, loader, names, device=accelerator.device, autocast=accelerator.autocast, progress=count)
    model.to("cpu")
    return replace(found, fingerprint=fingerprint(question.split))


def _restricted(found: Predictions, columns: Sequence[int], question: Question, source: str) -> Answered:
    places: NDArray[np.int64] = np.asarray(columns, dtype=np.int64)
    names = question.split.source.class_names
    restricted = replace(found, logits=found.logits[:, places], class_names=spoken_names(names))
    if found.logits.shape[1] == len(names) != NUM_CLASSES:
        return Answered(restricted, source)
    answers = found.logits.argmax(axis=1)
    unrestricted = float((answers == places[found.labels]).mean())
    return Answered(restricted, source, unrestricted, answers)


def on_common_images(answered: Sequence[Answered]) -> list[Predictions]:
    """Every model's answers to the images that all could be asked about, where some are broken."""
    common = set.intersection(*(set(each.predictions.indices.tolist()) for each in answered))
    chosen = []
    for each in answered:
        found = each.predictions
        rows = np.isin(found.indices, sorted(common))
        chosen.append(replace(found, indices=found.indices[rows], labels=found.labels[rows], logits=found.logits[rows]))
    return chosen
