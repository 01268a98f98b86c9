"""One model's frozen features evaluated on one data set: computed once, then by every protocol, all of it continued.

FOLDER/features/…   shards of features (`feature_store`), and the protocols' predictions
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor

from vit.config import DataConfig, check, check_positive
from vit.data.identity import notes_of_copies
from vit.data.images import Split, open_test
from vit.data.sources import open_source
from vit.data.splits import balanced_subset
from vit.engine import Accelerator, check_one_process
from vit.evaluation import transfer
from vit.evaluation.cost import count_parameters, multiply_adds
from vit.evaluation.feature_store import FeatureStore, complete, hashed
from vit.evaluation.frozen_features import FEATURES, resolve_features
from vit.evaluation.probe import linear_probe, probe_fault
from vit.hub import OpenedModel
from vit.progress import progress_bar
from vit.runs import replace_atomically, write_safetensors
from vit.wording import counted

_MOST_READ = 200_000
"""Images of a part whose files are compared; of more, reading them would take longer than a minute or two."""
Predicted = dict[str, NDArray[np.int64]]
"""Protocol → classes (draws, m); few-shot protocols have several draws, one a seed."""
CONVENTIONS = transfer.CONVENTIONS | {
    "training images": "all that the data set has, those that a run holds out for validation too",
    "images_per_second": "features of images that are decoded already, normalising included",
    "gmacs": "10⁹ multiply-adds for one image, head included",
    "pretraining_data": "as far as the source of the weights tells it",
}


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """The kinds of features that are evaluated, and limits on the images."""

    features: tuple[str, ...] = ("head",)
    num_train_images: int | None = None
    """About this many training images, classes balanced; None: all."""
    num_test_images: int | None = None

    @property
    def suffix(self) -> str:
        """The end of names of files with results on a part of the test images."""
        return "" if self.num_test_images is None else f"_{self.num_test_images}_images"

    def __post_init__(self) -> None:
        check(len(self.features) > 0, "--features", self.features, f"choose from {', '.join(FEATURES)}")
        check_positive("--train_images", self.num_train_images)
        check_positive("--images", self.num_test_images)


def loses_no_transfer(before: Mapping[str, Any], options: Mapping[str, Any] | None) -> bool:
    """Whether an earlier record has no results of frozen features, or was made with the same options."""
    if "transfer" not in before:
        return True
    return options is not None and before.get("transfer_options") == json.loads(json.dumps(options))


@dataclass(frozen=True)
class TransferData:
    """The training and test images, the same for every model."""

    train: Split
    test: Split
    config: DataConfig


@dataclass(frozen=True, eq=False)
class KindEvaluation:
    """One kind of one model's features, with every protocol's predictions for the same test images."""

    kind: str
    """The kind that was computed; `head` for every kind of a convolutional network."""
    width: int
    predicted: Predicted
    indices: Tensor
    """(m,) indices of the test images in the source, ascending."""
    labels: NDArray[np.int64]
    num_train: int

    def accuracies(self) -> dict[str, float]:
        return {protocol: float((classes == self.labels).mean()) for protocol, classes in self.predicted.items()}


@dataclass(frozen=True, eq=False)
class FeatureEvaluation:
    """`features[kind]` for each kind that was asked for, and what the features cost."""

    features: dict[str, KindEvaluation]
    cost: dict[str, Any]
    num_unread: int
    """Training and test images that could not be read."""

    def warnings(self) -> list[str]:
        """A sentence where images could not be read."""
        if not self.num_unread:
            return []
        return [f"{counted(self.num_unread, 'image')} could not be read; features are evaluated on the others."]

    def summary(self) -> dict[str, Any]:
        """Numbers for JSON."""
        evaluated = {
            asked: {"read": each.kind, "width": each.width, "num_train": each.num_train, "num_test": len(each.labels)}
            | each.accuracies()
            for asked, each in self.features.items()
        }
        return {"transfer": evaluated, "cost": self.cost}


def warnings_of_copies(data: TransferData) -> list[str]:
    """A sentence where test images are among those that probe and neighbours learn from."""
    return notes_of_copies(data.test, data.train, most=_MOST_READ)


def open_transfer_data(config: DataConfig, options: TransferOptions) -> TransferData:
    """Open the images. ValueError if there are too few for a linear probe."""
    source = open_source(config, "train")
    every = Split(source, torch.arange(len(source)))
    train = balanced_subset(every, options.num_train_images, stream="transfer")
    fault = probe_fault(train.labels)
    check(fault is None, "--transfer", f"{len(train)} training images", str(fault))
    return TransferData(train, balanced_subset(open_test(config), options.num_test_images, stream="comparison"), config)


def evaluate_features(
    opened: OpenedModel, data: TransferData, options: TransferOptions, folder: Path, accelerator: Accelerator
) -> FeatureEvaluation:
    """Evaluate the kinds of features that are asked for; what `folder` already holds is not computed again.

    ValueError for a kind that the model lacks, more than one process and images that cannot be read.
    """
    check_one_process(accelerator, "--transfer", "the frozen features are evaluated")
    resolved = resolve_features(opened, options.features)
    kinds = tuple(dict.fromkeys(resolved.values()))
    cost = feature_cost(opened)
    stores = []
    for part, split in (("training images", data.train), ("test images", data.test)):
        stores.append(FeatureStore.of(opened, split, data.config, folder / "features", accelerator))
        complete(stores[-1], opened, kinds, data.config, accelerator, f"{opened.name}, {part}")
    train, test = stores
    evaluated = {kind: _evaluate_kind(kind, train, test, opened.name) for kind in kinds}
    cost["images_per_second"] = test.images_per_second(kinds[0])
    first = evaluated[kinds[0]]
    unread = len(data.train) + len(data.test) - first.num_train - len(first.labels)
    return FeatureEvaluation({asked: evaluated[kind] for asked, kind in resolved.items()}, cost, unread)


def feature_cost(opened: OpenedModel) -> dict[str, Any]:
    """Parameters, 10⁹ multiply-adds for one image, and what the model was trained on."""
    origin = opened.provenance.data
    return {
        "params": count_parameters(opened.model),
        "gmacs": multiply_adds(opened.model, opened.preprocessing.image_size) / 1e9,
        "pretraining_data": " → ".join(origin) or "nothing",
    }


def _evaluate_kind(kind: str, train: FeatureStore, test: FeatureStore, name: str) -> KindEvaluation:
    """Every protocol on one kind of features, or what an earlier call has stored of them."""
    train_indices, train_features = train.read(kind)
    indices, features = test.read(kind)
    train_labels, labels = train.split.source.labels[train_indices], test.split.source.labels[indices]
    given = train_features, train_labels, features
    neighbours = min(transfer.NUM_NEIGHBOURS, len(train_labels))
    with progress_bar(f"{name}, {kind}", unit="fit") as bar:

        def say(fit: str) -> None:
            bar.set_postfix_str(fit)
            bar.update()

        def few_shot() -> Predicted:
            found = transfer.few_shot_predictions(*given, shots=transfer.possible_shots(train_labels))
            return {f"few_shot_{shots}": classes for shots, classes in found.items()}

        protocols: dict[str, Callable[[], Predicted]] = {
            "knn": lambda: {"knn": transfer.knn_predictions(*given, num_neighbours=neighbours)[None]},
            "few_shot": few_shot,
            "linear_probe": lambda: {"linear_probe": linear_probe(*given, progress=say).predicted[None]},
        }
        predicted: Predicted = {}
        for protocol, predict in protocols.items():
            say(protocol)
            predicted |= _read_or_compute(test.folder / f"{kind}-{hashed(train.key)}-{protocol}.safetensors", predict)
    return KindEvaluation(kind, features.shape[1], predicted, indices, labels.numpy(), len(train_labels))


def _read_or_compute(path: Path, predict: Callable[[], Predicted]) -> Predicted:
    """Read predictions, or compute and store them."""
    if path.is_file():
        return load_file(path)
    predicted = predict()
    with replace_atomically(path) as unfinished:
        write_safetensors(unfinished, {name: torch.from_numpy(classes) for name, classes in predicted.items()})
    return predicted
