"""How good a model's frozen features are: k-NN, few-shot linear, linear probe.

Features are what the head reads. Every method standardises or normalises with the training features alone; the test
features choose nothing. This room does not know where the model's weights come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vit.evaluation.evaluate import Autocast, check_seen_once, collect
from vit.models import Classifier

if TYPE_CHECKING:
    from vit.data.loading import EvalLoader

Array = NDArray[np.float64]
NUM_NEIGHBOURS, KNN_TEMPERATURE = 20, 0.07
SHOTS, SEEDS = (1, 5, 10, 25), (0, 1, 2)
STRENGTHS = tuple(float(10.0**power) for power in range(-4, 3))
_BIAS, _EPSILON, _L2 = 100.0, 1e-5, 2.0**10
CONVENTIONS = {
    "features": "the pooled vector that the head reads",
    "knn": f"cosine similarity s, {NUM_NEIGHBOURS} neighbours, each votes exp(s / {KNN_TEMPERATURE}) (DINO)",
    "few_shot": f"ridge regression on ±1 targets, l2 = {_L2:g}, bias column {_BIAS:g} (ViT, big_vision); mean of seeds",
    "linear_probe": "logistic regression on standardised features; strength chosen on a held-out fifth of training",
}


class LinearProbe(NamedTuple):
    accuracy: float
    """On the test features."""
    strength: float
    """scikit-learn's `C`: the larger, the less regularised."""
    held_out: dict[float, float]
    """Accuracy of each strength on the held-out part of the training features."""


def transfer_metrics(
    model: Classifier,
    train: EvalLoader,
    test: EvalLoader,
    *,
    device: torch.device,
    autocast: Autocast = nullcontext,
) -> dict[str, float]:
    """`knn`, `few_shot_{n}` for every n that all classes have images for, and `linear_probe`: accuracies on `test`."""
    train_features, train_labels = extract_features(model, train, device=device, autocast=autocast)
    test_features, test_labels = extract_features(model, test, device=device, autocast=autocast)
    sets = train_features, train_labels, test_features, test_labels
    rarest = int(train_labels.bincount().min())
    few_shot = few_shot_linear(*sets, shots=[shots for shots in SHOTS if shots <= rarest])
    return {
        "knn": knn_accuracy(*sets, num_neighbours=min(NUM_NEIGHBOURS, len(train_labels))),
        **{f"few_shot_{shots}": float(np.mean(accuracies)) for shots, accuracies in few_shot.items()},
        "linear_probe": linear_probe(*sets).accuracy,
    }


def extract_features(
    model: Classifier, loader: EvalLoader, *, device: torch.device, autocast: Autocast = nullcontext
) -> tuple[Tensor, Tensor]:
    """Features float32 (n, c) and labels int64 (n,) of a whole split, on the CPU, in the order of the source."""
    indices, labels, features = collect(
        model, lambda images: model.pool(model.forward_features(images)), loader, device=device, autocast=autocast
    )
    check_seen_once(indices, loader, device=device)
    return features, labels


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    num_neighbours: int = NUM_NEIGHBOURS,
    temperature: float = KNN_TEMPERATURE,
) -> float:
    """Accuracy of the vote of the nearest training features (Wu et al. 2018; DINO, Caron et al. 2021).

    Cosine similarity s; a neighbour votes for its class with weight exp(s / temperature). Of equal votes the lower
    class wins. Features (n, c), labels (n,). ValueError: fewer training features than neighbours.
    """
    if num_neighbours > len(train_features):
        raise ValueError(
            f"num_neighbours: {num_neighbours} is not valid: there are {len(train_features)} training features"
        )
    keys = torch.nn.functional.normalize(train_features, dim=1)
    num_classes = int(train_labels.max()) + 1
    correct = 0
    for queries, labels in zip(test_features.split(1024), test_labels.split(1024), strict=True):
        similarity = torch.nn.functional.normalize(queries, dim=1) @ keys.T  # n m
        nearest, places = similarity.topk(num_neighbours, dim=1)
        votes = torch.zeros(len(queries), num_classes, dtype=torch.float64)
        votes.scatter_add_(1, train_labels[places], (nearest.double() / temperature).exp())
        correct += int((votes.numpy().argmax(axis=1) == labels.numpy()).sum())
    return correct / len(test_labels)


def few_shot_linear(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = SEEDS,
) -> dict[int, list[float]]:
    """Accuracy of a linear map fitted in closed form to a few images a class: for every number of shots, one a seed.

    The ViT paper's few-shot evaluation as big_vision does it: a random permutation of each class's images, of which
    the first `shots` are the support set. ValueError: a class has fewer images than shots.
    """
    train, labels = _double(train_features), train_labels.numpy()
    test, truth = _double(test_features), test_labels.numpy()
    counts = np.bincount(labels)
    if shots and counts.min() < max(shots):
        rule = f"class {counts.argmin()} has {counts.min()} training images"
        raise ValueError(f"shots: {max(shots)} is not valid: {rule}")
    accuracies: dict[int, list[float]] = {number: [] for number in shots}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        permuted = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(counts))]
        for number in shots:
            support = np.concatenate([places[:number] for places in permuted])
            answers = ridge_scores(train[support], labels[support], test).argmax(axis=1)
            accuracies[number].append(float((answers == truth).mean()))
    return accuracies


def ridge_scores(support: Array, labels: NDArray[np.int64], queries: Array) -> Array:
    """(m, k) scores of `queries` (m, c) under ridge regression from `support` (n, c) to ±1 one-hot targets.

    Both are standardised with the support's mean and std, and get a constant column, large so that the penalty hardly
    touches it. With fewer features than support images the primal equations are solved, else the dual ones.
    """
    mean, std = support.mean(axis=0), support.std(axis=0) + _EPSILON
    x, q = (np.pad((features - mean) / std, ((0, 0), (0, 1)), constant_values=_BIAS) for features in (support, queries))
    targets = 2 * np.eye(labels.max() + 1)[labels] - 1  # n k
    num, width = x.shape
    if num >= width:
        return q @ np.linalg.solve(x.T @ x + _L2 * np.eye(width), x.T @ targets)
    return (q @ x.T) @ np.linalg.solve(x @ x.T + _L2 * np.eye(num), targets)


def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    strengths: Sequence[float] = STRENGTHS,
    held_out: float = 0.2,
    seed: int = 0,
) -> LinearProbe:
    """Logistic regression on standardised features (multinomial, L2).

    The strength is the one that does best on a held-out part of the training features, class-balanced and fixed by
    `seed`; of equally good ones the most regularised. The final fit is on all of them.
    """
    from sklearn.model_selection import train_test_split

    x, y = _double(train_features), train_labels.numpy()
    fit_x, held_x, fit_y, held_y = train_test_split(x, y, test_size=held_out, random_state=seed, stratify=y)
    scores = {strength: _logistic(fit_x, fit_y, held_x, held_y, strength) for strength in sorted(strengths)}
    best = max(scores, key=lambda strength: scores[strength])
    accuracy = _logistic(x, y, _double(test_features), test_labels.numpy(), best)
    return LinearProbe(accuracy=accuracy, strength=best, held_out=scores)


def _logistic(x: Array, y: NDArray[np.int64], test_x: Array, test_y: NDArray[np.int64], strength: float) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))
    return float(classifier.fit(x, y).score(test_x, test_y))


def _double(features: Tensor) -> Array:
    return features.numpy().astype(np.float64)
