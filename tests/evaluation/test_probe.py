"""The linear probe is scikit-learn's logistic regression, computed otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from tests.evaluation.test_transfer import clusters
from vit.evaluation.probe import (
    _cross_entropy,
    fit_logistic,
    gram_matrix,
    linear_probe,
    predict_classes,
    probe_fault,
    standardise,
)


@pytest.mark.parametrize("strength", [0.01, 1.0, 30.0])
def test_the_optimum_is_scikit_learns(strength: float) -> None:
    train, labels = clusters(200, num_classes=4, noise=1.5)
    x, _ = standardise(train, train)
    oracle = LogisticRegression(C=strength, max_iter=5000, tol=1e-9).fit(x.double().numpy(), labels)
    expected = np.column_stack([oracle.coef_, oracle.intercept_])
    precise = fit_logistic(x.double(), labels, strength, tolerance=1e-9)
    np.testing.assert_allclose(precise, expected, atol=1e-5 * np.abs(expected).max())
    found = fit_logistic(x, labels, strength)
    np.testing.assert_allclose(found, expected, atol=5e-3 * np.abs(expected).max())
    np.testing.assert_array_equal(predict_classes(found, x), oracle.predict(x.double().numpy()))


def test_another_start_leads_to_the_same_optimum() -> None:
    x, labels = clusters(150, noise=1.5)
    start = np.random.default_rng(0).normal(size=(3, 7))
    from_zero, from_there = (
        fit_logistic(x.double(), labels, 1.0, start=first, tolerance=1e-8) for first in (None, start)
    )
    # moving all biases alike changes nothing
    for found in (from_zero, from_there):
        found[:, -1] -= found[:, -1].mean()
    np.testing.assert_allclose(from_there, from_zero, atol=1e-4)


def test_correlated_features_take_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    train, labels = clusters(200, num_classes=4, noise=1.5)
    mixed = train @ torch.diag(torch.logspace(0, -2, train.shape[1])) + train.sum(dim=1, keepdim=True)
    x, _ = standardise(mixed, mixed)
    assert np.linalg.cond(gram_matrix(x)) > 1e4
    passes = []

    def counted(*args: Any) -> Any:
        passes.append(1)
        return _cross_entropy(*args)

    monkeypatch.setattr("vit.evaluation.probe._cross_entropy", counted)
    weights = fit_logistic(x.double(), labels, 100.0)
    _, gradient = _cross_entropy(weights, x.double(), labels)
    gradient[:, :-1] += weights[:, :-1] / (100.0 * len(x))
    assert np.abs(gradient).max() <= 1e-4
    assert len(passes) < 60


def test_sums_over_parts_of_the_rows_are_those_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = clusters(70, noise=1.5)
    whole = fit_logistic(x.double(), labels, 1.0)
    monkeypatch.setattr("vit.evaluation.probe._ROWS", 17)
    np.testing.assert_allclose(fit_logistic(x.double(), labels, 1.0), whole, atol=1e-6)


def test_features_are_standardised_with_the_first() -> None:
    train, test = torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([[5.0, 6.0]])
    x, y = standardise(train, test)
    assert x.tolist() == [[-1, 0], [1, 0]]
    assert y.tolist() == [[3, 1]]  # one unit of a feature that was constant in training


def test_the_strength_is_the_best_on_held_out_features() -> None:
    train, labels = clusters(150, noise=1.0)
    test, truth = clusters(60, noise=1.0, seed=1)
    first = linear_probe(train, labels, test)
    assert first.held_out[first.strength] == max(first.held_out.values())
    assert len(set(first.held_out.values())) > 1
    again = linear_probe(train * 1000 + 7, labels, test * 1000 + 7)  # standardised
    assert (again.predicted == truth.numpy()).mean() == pytest.approx(
        (first.predicted == truth.numpy()).mean(), abs=0.02
    )


@pytest.mark.parametrize(
    ("labels", "fits"),
    [
        ([0, 1] * 5, True),
        ([0] * 9 + [1], False),  # a class of one image
        (list(range(6)) * 4, False),  # six classes, and a fifth of 24 images is five
        (list(range(5)) * 4 + [0], True),
    ],
)
def test_too_few_images_for_a_probe_are_one_line(labels: list[int], fits: bool) -> None:
    features = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor(labels)
    assert (probe_fault(y) is None) is fits
    if fits:
        assert set(linear_probe(features, y, features).predicted) <= set(labels)
    else:
        with pytest.raises(ValueError, match=r"^--transfer: a linear probe needs at least two images of every class"):
            linear_probe(features, y, features)
