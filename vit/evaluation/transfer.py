"""Protocols that evaluate frozen features: k-NN, few-shot linear, linear probe.

Every protocol standardises or normalises with the training features alone, and predicts the classes of the test
features without knowing their labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vit.evaluation.probe import CONVENTION

Array = NDArray[np.float64]
Classes = NDArray[np.int64]
NUM_NEIGHBOURS, KNN_TEMPERATURE = 20, 0.07
SHOTS, SEEDS = (1, 5, 10, 25), (0, 1, 2)
_BIAS, _EPSILON, _L2 = 100.0, 1e-5, 2.0**10
_QUERIES = 256
"""Test features whose neighbours are searched at once."""
CONVENTIONS = {
    "knn": f"cosine similarity s, {NUM_NEIGHBOURS} neighbours, each votes exp(s / {KNN_TEMPERATURE}) (DINO)",
    "few_shot": f"ridge regression on ±1 targets, l2 = {_L2:g}, bias column {_BIAS:g} (ViT, big_vision); mean of seeds",
    "linear_probe": CONVENTION,
}


def possible_shots(labels: Tensor) -> list[int]:
    """Those of `SHOTS` for which every class of (n,) has enough images."""
    rarest = int(labels.bincount().min())
    return [shots for shots in SHOTS if shots <= rarest]


def knn_predictions(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    *,
    num_neighbours: int = NUM_NEIGHBOURS,
    temperature: float = KNN_TEMPERATURE,
) -> Classes:
    """Predict classes (m,) by weighted k-nearest neighbours (Wu et al. 2018; DINO, Caron et al. 2021).

    A neighbour of cosine similarity s votes for its class with weight exp(s / temperature). Of equal votes the lower
    class wins. Features (n, c) and (m, c), labels (n,). ValueError if there are fewer training features than
    neighbours.
    """
    if num_neighbours > len(train_features):
        raise ValueError(
            f"num_neighbours: {num_neighbours} is not valid: there are {len(train_features)} training features"
        )
    keys = torch.nn.functional.normalize(train_features, dim=1)
    num_classes = int(train_labels.max()) + 1
    predicted = []
    for queries in test_features.split(_QUERIES):
        similarity = torch.nn.functional.normalize(queries, dim=1) @ keys.T  # m n
        nearest, places = similarity.topk(num_neighbours, dim=1)
        votes = torch.zeros(len(queries), num_classes, dtype=torch.float64)
        votes.scatter_add_(1, train_labels[places], (nearest.double() / temperature).exp())
        predicted.append(votes.numpy().argmax(axis=1))
    return np.concatenate(predicted)


def few_shot_predictions(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = SEEDS,
) -> dict[int, Classes]:
    """Predict classes (seeds, m) by ridge regression on each number of `shots` per class.

    This is the ViT paper's few-shot evaluation as in big_vision: the support set is the first `shots` of a random
    permutation of each class's images. ValueError if a class has fewer images than shots.
    """
    train, labels = train_features.numpy(), train_labels.numpy()
    test = test_features.numpy().astype(np.float64)
    counts = np.bincount(labels)
    if shots and counts.min() < max(shots):
        rule = f"class {counts.argmin()} has {counts.min()} training images"
        raise ValueError(f"shots: {max(shots)} is not valid: {rule}")
    predicted: dict[int, list[Classes]] = {number: [] for number in shots}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        permuted = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(counts))]
        for number in shots:
            support = np.concatenate([places[:number] for places in permuted])
            scores = ridge_scores(train[support].astype(np.float64), labels[support], test)
            predicted[number].append(scores.argmax(axis=1))
    return {number: np.stack(each) for number, each in predicted.items()}


def ridge_scores(support: Array, labels: NDArray[np.int64], queries: Array) -> Array:
    """Score `queries` (m, c) by ridge regression from `support` (n, c) to ±1 one-hot targets: (m, k).

    Both are standardised with the support's mean and std, and get a constant column, large so that the penalty hardly
    affects it. With fewer features than support images the primal equations are solved, else the dual ones.
    """
    mean, std = support.mean(axis=0), support.std(axis=0) + _EPSILON
    x, q = (np.pad((features - mean) / std, ((0, 0), (0, 1)), constant_values=_BIAS) for features in (support, queries))
    targets = 2 * np.eye(labels.max() + 1)[labels] - 1  # n k
    num, width = x.shape
    if num >= width:
        return q @ np.linalg.solve(x.T @ x + _L2 * np.eye(width), x.T @ targets)
    return (q @ x.T) @ np.linalg.solve(x @ x.T + _L2 * np.eye(num), targets)
