"""Evaluation of a model's frozen features: k-NN, few-shot linear, linear probe.

Features are the input of the head. Every method standardises or normalises with the training features alone; nothing is
chosen by the test features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vit.evaluation.evaluate import Autocast, check_seen_once, collect_outputs

if TYPE_CHECKING:
    from vit.data.loading import EvalLoader

Array = NDArray[np.float64]
NUM_NEIGHBOURS, KNN_TEMPERATURE = 20, 0.07
SHOTS, SEEDS = (1, 5, 10, 25), (0, 1, 2)
STRENGTHS = tuple(float(10.0**power) for power in range(-4, 3))
_BIAS, _EPSILON, _L2 = 100.0, 1e-5, 2.0**10
CONVENTIONS = {
    "features": "the pooled vector that is the head's input",
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
    model: nn.Module,
    train: EvalLoader,
    test: EvalLoader,
    *,
    device: torch.device,
    autocast: Autocast = nullcontext,
) -> dict[str, float]:
    """Compute the accuracies `knn`, `few_shot_{n}` (if every class has n images) and `linear_probe` on `test`."""
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
    model: nn.Module, loader: EvalLoader, *, device: torch.device, autocast: Autocast = nullcontext
) -> tuple[Tensor, Tensor]:
    """Compute features float32 (n, c) and labels int64 (n,) of a split, on the CPU, in the order of the source."""
    indices, labels, features = collect_outputs(model, frozen_features(model), loader, device=device, autocast=autocast)
    check_seen_once(indices, loader, device=device)
    return features, labels


def frozen_features(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function from images `b 3 H W` to the head's input `b c`, or to the output if there is no head.

    Our models and timm's have methods for it; in others, the head is the last linear layer whose output is the model's.
    """
    split_model: Any = model
    if hasattr(model, "forward_head"):
        return lambda images: split_model.forward_head(split_model.forward_features(images), pre_logits=True)
    if hasattr(model, "pool"):
        return lambda images: split_model.pool(split_model.forward_features(images))

    def head_input(images: Tensor) -> Tensor:
        calls: list[tuple[Tensor, Tensor]] = []
        heads = [module for module in model.modules() if isinstance(module, nn.Linear)]
        hooks = [head.register_forward_hook(lambda _, args, out: calls.append((args[0], out))) for head in heads]
        try:
            output: Tensor = model(images)
        finally:
            for hook in hooks:
                hook.remove()
        return next((given for given, out in reversed(calls) if out is output and given.dim() == 2), output)

    return head_input


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    num_neighbours: int = NUM_NEIGHBOURS,
    temperature: float = KNN_TEMPERATURE,
) -> float:
    """Compute the accuracy of weighted k-nearest neighbours (Wu et al. 2018; DINO, Caron et al. 2021).

    A neighbour of cosine similarity s votes for its class with weight exp(s / temperature). Of equal votes the lower
    class wins. Features (n, c), labels (n,). ValueError if there are fewer training features than neighbours.
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
    """Compute the accuracies, one per seed, of ridge regression on each number of `shots` per class.

    This is the ViT paper's few-shot evaluation as in big_vision: the support set is the first `shots` of a random
    permutation of each class's images. ValueError if a class has fewer images than shots.
    """
    train, labels = train_features.numpy().astype(np.float64), train_labels.numpy()
    test, truth = test_features.numpy().astype(np.float64), test_labels.numpy()
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
            predicted = ridge_scores(train[support], labels[support], test).argmax(axis=1)
            accuracies[number].append(float((predicted == truth).mean()))
    return accuracies


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


def probe_fault(labels: Tensor, held_out: float = 0.2) -> str | None:
    """Why no linear probe can be fitted on images of these labels (n,); None: it can."""
    counts = labels.unique(return_counts=True)[1]
    num_held_out = math.ceil(held_out * len(labels))
    if int(counts.min()) >= 2 and min(num_held_out, len(labels) - num_held_out) >= len(counts):
        return None
    return (
        "a linear probe needs at least two images of every class, and as many as there are classes in the "
        f"{held_out:.0%} that choose its strength; there are {len(labels)} images of {len(counts)} classes"
    )


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
    """Fit a linear probe: multinomial logistic regression with L2 on standardised features.

    The strength is the best one on a held-out part of the training features, class-balanced and fixed by `seed`; of
    equally good ones the most regularised. The final fit is on all training features. ValueError for too few images of
    a class (`probe_fault`).
    """
    from sklearn.model_selection import train_test_split

    fault = probe_fault(train_labels, held_out)
    if fault is not None:
        raise ValueError(f"--transfer: {fault}")
    x, y = train_features.numpy().astype(np.float64), train_labels.numpy()
    fit_x, held_x, fit_y, held_y = train_test_split(x, y, test_size=held_out, random_state=seed, stratify=y)
    scores = {strength: _logistic(fit_x, fit_y, held_x, held_y, strength) for strength in sorted(strengths)}
    best = max(scores, key=lambda strength: scores[strength])
    accuracy = _logistic(x, y, test_features.numpy().astype(np.float64), test_labels.numpy(), best)
    return LinearProbe(accuracy=accuracy, strength=best, held_out=scores)


def _logistic(x: Array, y: NDArray[np.int64], test_x: Array, test_y: NDArray[np.int64], strength: float) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=2000))
    return float(classifier.fit(x, y).score(test_x, test_y))
