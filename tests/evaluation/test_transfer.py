from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vit.evaluation.probe import linear_probe
from vit.evaluation.transfer import SHOTS, few_shot_predictions, knn_predictions, possible_shots, ridge_scores


def clusters(
    num: int, num_classes: int = 3, width: int = 6, noise: float = 0.4, seed: int = 0
) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(num_classes, width))
    labels = np.arange(num) % num_classes
    features = centres[labels] + noise * rng.normal(size=(num, width))
    return torch.from_numpy(features).float(), torch.from_numpy(labels)


def test_knn_votes_by_hand() -> None:
    # the query has cosine 1 with one image of class 0, and 0.8 with three of class 1
    train = torch.tensor([[2.0, 0.0], [4.0, 3.0], [8.0, 6.0], [0.8, 0.6]])
    labels = torch.tensor([0, 1, 1, 1])
    query = torch.tensor([[5.0, 0.0]])
    near: dict[str, Any] = {"num_neighbours": 4, "temperature": 0.07}  # e^(1 / .07) > 3 e^(.8 / .07)
    far: dict[str, Any] = {"num_neighbours": 4, "temperature": 1.0}  # e < 3 e^.8
    assert math.exp(0.2 / 0.07) > 3 > math.exp(0.2)
    assert knn_predictions(train, labels, query, **near).tolist() == [0]
    assert knn_predictions(train, labels, query, **far).tolist() == [1]
    assert knn_predictions(train, labels, query, **(far | {"num_neighbours": 1})).tolist() == [0]


def test_knn_equals_a_loop() -> None:
    train, labels = clusters(90, noise=1.5)
    test, truth = clusters(40, noise=1.5, seed=1)
    a, b = (features.double().numpy() for features in (train, test))
    expected = []
    for query in b:
        similarity = a @ query / np.linalg.norm(a, axis=1) / np.linalg.norm(query)
        votes = np.zeros(3)
        for place in np.argsort(-similarity)[:20]:
            votes[labels[place]] += np.exp(similarity[place] / 0.07)
        expected.append(votes.argmax())
    found = knn_predictions(train, labels, test)
    np.testing.assert_array_equal(found, expected)
    assert 0.4 < (found == truth.numpy()).mean() < 1
    permuted = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(knn_predictions(train[permuted], labels[permuted], test), found)


def test_more_neighbours_than_images_is_refused() -> None:
    train, labels = clusters(9)
    with pytest.raises(ValueError, match=r"num_neighbours: 20 .* 9 training features"):
        knn_predictions(train, labels, train)


@pytest.mark.parametrize(("num", "width"), [(30, 4), (6, 11), (5, 4), (4, 4)])
def test_ridge_is_the_regularised_normal_equations(num: int, width: int) -> None:
    """Primal and dual alike: the weights that make the gradient of the penalised squared error zero."""
    rng = np.random.default_rng(0)
    support, queries = rng.normal(size=(num, width)) * 3 + 1, rng.normal(size=(7, width))
    labels = np.arange(num) % 3
    mean, std = support.mean(0), np.sqrt(((support - support.mean(0)) ** 2).mean(0)) + 1e-5
    x = np.column_stack([(support - mean) / std, np.full(num, 100.0)])
    q = np.column_stack([(queries - mean) / std, np.full(7, 100.0)])
    targets = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    primal = np.linalg.inv(x.T @ x + 1024 * np.eye(width + 1)) @ x.T @ targets
    dual = x.T @ np.linalg.inv(x @ x.T + 1024 * np.eye(num)) @ targets
    np.testing.assert_allclose(primal, dual, rtol=1e-6, atol=1e-10)
    np.testing.assert_allclose(x.T @ (x @ primal - targets) + 1024 * primal, 0, atol=1e-7)
    np.testing.assert_allclose(ridge_scores(support, labels, queries), q @ primal, rtol=1e-7, atol=1e-9)


def test_ridge_equals_sklearns() -> None:
    from sklearn.linear_model import Ridge

    rng = np.random.default_rng(1)
    support, queries, labels = rng.normal(size=(40, 5)), rng.normal(size=(7, 5)), np.arange(40) % 4
    mean, std = support.mean(0), support.std(0) + 1e-5
    x, q = (np.pad((f - mean) / std, ((0, 0), (0, 1)), constant_values=100.0) for f in (support, queries))
    ridge = Ridge(alpha=1024, fit_intercept=False).fit(x, 2 * np.eye(4)[labels] - 1)
    np.testing.assert_allclose(ridge_scores(support, labels, queries), ridge.predict(q), atol=1e-10)


def test_few_shot_takes_the_first_of_each_class_permuted() -> None:
    train, labels = clusters(60, noise=1.2)
    test, _ = clusters(33, noise=1.2, seed=1)
    found = few_shot_predictions(train, labels, test, shots=[2, 5], seeds=[3, 4])
    assert set(found) == {2, 5}
    for place, seed in enumerate((3, 4)):
        rng = np.random.default_rng(seed)
        permuted = [rng.permutation(np.flatnonzero(labels.numpy() == label)) for label in range(3)]
        for shots in (2, 5):
            support = np.concatenate([places[:shots] for places in permuted])
            scores = ridge_scores(train.double().numpy()[support], labels.numpy()[support], test.double().numpy())
            np.testing.assert_array_equal(found[shots][place], scores.argmax(1))


def test_more_shots_than_images_is_refused() -> None:
    train, labels = clusters(10)
    with pytest.raises(ValueError, match=r"shots: 25 is not valid: class 1 has 3 training images"):
        few_shot_predictions(train, labels, train)


def test_easy_classes_are_learned_by_all() -> None:
    train, labels = clusters(120, noise=0.1)
    test, truth = clusters(30, noise=0.1, seed=1)
    for predicted in (
        knn_predictions(train, labels, test),
        *few_shot_predictions(train, labels, test)[25],
        linear_probe(train, labels, test).predicted,
    ):
        np.testing.assert_array_equal(predicted, truth)


def test_shots_are_those_that_every_class_has() -> None:
    assert SHOTS == (1, 5, 10, 25)
    assert possible_shots(torch.arange(20) % 3) == [1, 5]
    assert possible_shots(torch.arange(80) % 3) == [1, 5, 10, 25]
