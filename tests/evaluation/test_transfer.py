from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.evaluation.stand_ins import Loader
from vit.config import ViTConfig
from vit.evaluation.transfer import (
    SHOTS,
    extract_features,
    few_shot_linear,
    knn_accuracy,
    linear_probe,
    probe_fault,
    ridge_scores,
    transfer_metrics,
)
from vit.models import build_model

CPU = torch.device("cpu")


def clusters(
    num: int, num_classes: int = 3, width: int = 6, noise: float = 0.4, seed: int = 0
) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(num_classes, width))
    labels = np.arange(num) % num_classes
    features = centres[labels] + noise * rng.normal(size=(num, width))
    return torch.from_numpy(features).float(), torch.from_numpy(labels)


class PixelFeatures(nn.Module):
    """Features that say which image it was: its place among them, and that place modulo three."""

    def forward_features(self, images: Tensor) -> Tensor:
        place = ((images[:, 0, 0, 0] * 0.5 + 0.5) * 255).round()
        return torch.stack([place, place % 3], dim=1)[:, None]

    def pool(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]


def test_features_are_pooled_and_sorted() -> None:
    loader = Loader(10)
    loader.mine = loader.mine[::-1]
    features, labels = extract_features(PixelFeatures(), loader, device=CPU)
    np.testing.assert_allclose(features[:, 0], np.arange(10))
    np.testing.assert_array_equal(labels, np.arange(10) % 3)
    assert features.dtype == torch.float32


def test_features_are_what_the_head_reads() -> None:
    config = ViTConfig(image_size=(8, 12), patch_size=(4, 4), num_classes=3, width=24, depth=1, num_heads=3)
    model = build_model(config)
    images = torch.randint(256, (5, 3, 8, 12), dtype=torch.uint8)
    loader = Loader(5)
    batch = SimpleNamespace(images=images, labels=torch.arange(5) % 3, indices=loader.split.indices)
    loader.batches = [batch]
    features, _ = extract_features(model, loader, device=CPU)
    logits = model.eval()(images.float() / 255 * 2 - 1)
    torch.testing.assert_close(model.head(features), logits, atol=1e-5, rtol=1e-5)


def test_a_missing_sample_is_named() -> None:
    loader = Loader(10)
    loader.mine.remove(3)
    with pytest.raises(AssertionError, match=r"missing indices 11$"):
        extract_features(PixelFeatures(), loader, device=CPU)


def test_knn_votes_by_hand() -> None:
    # the query has cosine 1 with one image of class 0, and 0.8 with three of class 1
    train = torch.tensor([[2.0, 0.0], [4.0, 3.0], [8.0, 6.0], [0.8, 0.6]])
    labels = torch.tensor([0, 1, 1, 1])
    query = torch.tensor([[5.0, 0.0]])
    near = {"num_neighbours": 4, "temperature": 0.07}  # e^(1 / .07) > 3 e^(.8 / .07)
    far = {"num_neighbours": 4, "temperature": 1.0}  # e < 3 e^.8
    assert math.exp(0.2 / 0.07) > 3 > math.exp(0.2)
    assert knn_accuracy(train, labels, query, torch.tensor([0]), **near) == 1
    assert knn_accuracy(train, labels, query, torch.tensor([1]), **far) == 1
    assert knn_accuracy(train, labels, query, torch.tensor([0]), **(far | {"num_neighbours": 1})) == 1


def test_knn_equals_a_loop() -> None:
    train, labels = clusters(90, noise=1.5)
    test, truth = clusters(40, noise=1.5, seed=1)
    a, b = (features.double().numpy() for features in (train, test))
    correct = 0
    for query, label in zip(b, truth.tolist(), strict=True):
        similarity = a @ query / np.linalg.norm(a, axis=1) / np.linalg.norm(query)
        votes = np.zeros(3)
        for place in np.argsort(-similarity)[:20]:
            votes[labels[place]] += np.exp(similarity[place] / 0.07)
        correct += votes.argmax() == label
    found = knn_accuracy(train, labels, test, truth)
    assert found == correct / 40
    assert 0.4 < found < 1
    permuted = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    assert knn_accuracy(train[permuted], labels[permuted], test, truth) == found


def test_more_neighbours_than_images_is_refused() -> None:
    train, labels = clusters(9)
    with pytest.raises(ValueError, match=r"num_neighbours: 20 .* 9 training features"):
        knn_accuracy(train, labels, train, labels)


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
    test, truth = clusters(33, noise=1.2, seed=1)
    found = few_shot_linear(train, labels, test, truth, shots=[2, 5], seeds=[3, 4])
    assert set(found) == {2, 5}
    for place, seed in enumerate((3, 4)):
        rng = np.random.default_rng(seed)
        permuted = [rng.permutation(np.flatnonzero(labels.numpy() == label)) for label in range(3)]
        for shots in (2, 5):
            support = np.concatenate([places[:shots] for places in permuted])
            scores = ridge_scores(train.double().numpy()[support], labels.numpy()[support], test.double().numpy())
            assert found[shots][place] == (scores.argmax(1) == truth.numpy()).mean()


def test_more_shots_than_images_is_refused() -> None:
    train, labels = clusters(10)
    with pytest.raises(ValueError, match=r"shots: 25 is not valid: class 1 has 3 training images"):
        few_shot_linear(train, labels, train, labels)


def test_easy_classes_are_learned_by_all() -> None:
    train, labels = clusters(120, noise=0.1)
    test, truth = clusters(30, noise=0.1, seed=1)
    assert knn_accuracy(train, labels, test, truth) == 1
    assert few_shot_linear(train, labels, test, truth)[25] == [1, 1, 1]
    assert linear_probe(train, labels, test, truth).accuracy == 1


def test_the_probe_chooses_without_the_test_features() -> None:
    train, labels = clusters(150, noise=1.0)
    test, truth = clusters(60, noise=1.0, seed=1)
    first = linear_probe(train, labels, test, truth)
    spoiled = linear_probe(train, labels, test * 0, (truth + 1) % 3)
    assert (spoiled.strength, spoiled.held_out) == (first.strength, first.held_out)
    assert first.held_out[first.strength] == max(first.held_out.values())
    assert len(set(first.held_out.values())) > 1
    again = linear_probe(train * 1000 + 7, labels, test * 1000 + 7, truth)
    assert again.accuracy == pytest.approx(first.accuracy, abs=0.02)  # standardised


def test_the_probe_is_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    train, labels = clusters(90, noise=1.0)
    test, truth = clusters(60, noise=1.0, seed=1)
    mean, std = train.mean(0), train.std(0, correction=0)
    oracle = LogisticRegression(C=0.1, max_iter=2000).fit((train - mean) / std, labels)
    found = linear_probe(train, labels, test, truth, strengths=[0.1])
    assert found.accuracy == pytest.approx(oracle.score((test - mean) / std, truth))


def test_everything_from_a_model_and_two_loaders() -> None:
    found = transfer_metrics(PixelFeatures(), Loader(20), Loader(9), device=CPU)
    assert list(found) == ["knn", "few_shot_1", "few_shot_5", "linear_probe"]
    assert SHOTS == (1, 5, 10, 25)
    assert all(0 <= accuracy <= 1 for accuracy in found.values())


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
        assert 0 <= linear_probe(features, y, features, y).accuracy <= 1
    else:
        with pytest.raises(ValueError, match=r"^--transfer: a linear probe needs at least two images of every class"):
            linear_probe(features, y, features, y)
