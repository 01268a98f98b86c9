"""Row 7: learning from scores that grow with d, and from scores that do not."""

from __future__ import annotations

import pytest
import torch

from notebooks.score_scaling import CHANCE, KINDS, Kind, Pairing, compare_scores, learn_pairing


def test_additive_beats_unscaled_products_as_d_grows() -> None:
    """Level at d = 16; at d = 128 unscaled products have learned next to nothing."""
    learned = compare_scores((16, 128), num_seeds=2)
    assert list(learned) == list(KINDS)
    narrow, wide = ({kind: weights[place] for kind, weights in learned.items()} for place in (0, 1))
    assert min(narrow.values()) > 0.4
    assert wide["dot-product"] < 0.3
    assert min(wide["additive"], wide["scaled dot-product"]) > 0.7


@pytest.mark.parametrize(("kind", "variance"), [("dot-product", 64.0), ("scaled dot-product", 1.0)])
def test_scores_before_training_have_the_variance_of_the_theory(kind: Kind, variance: float) -> None:
    pairings = [Pairing(kind, 64, seed) for seed in range(5)]
    scores = torch.stack([pairing.score()[0](*pairing.projected(), pairing.score()[1]) for pairing in pairings])
    assert scores.var().item() == pytest.approx(variance, rel=0.2)


def test_every_score_starts_from_the_same_vectors_and_projections() -> None:
    additive, product = Pairing("additive", 7, 3), Pairing("dot-product", 7, 3)
    for name in ("queries", "keys", "values", "project_query", "project_key"):
        assert torch.equal(getattr(additive, name), getattr(product, name))
    assert len(list(additive.parameters())) == 3
    assert len(list(product.parameters())) == 2


def test_one_step_of_adam_moves_every_number_by_the_learning_rate() -> None:
    pairing = Pairing("additive", 5, 0)
    pairing.error().backward()
    with torch.no_grad():
        for parameter in pairing.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.3 * parameter.grad.sign())
    expected = pairing.weight_on_own_key()
    assert learn_pairing("additive", 5, num_steps=1, learning_rate=0.3) == pytest.approx(expected, abs=1e-5)


def test_a_pairing_that_is_learned_and_one_that_knows_nothing() -> None:
    pairing = Pairing("dot-product", 32, 0)
    with torch.no_grad():
        pairing.project_query.zero_()
    assert pairing.weight_on_own_key() == pytest.approx(CHANCE)
    pairing.project_query.data = pairing.project_key.data = torch.eye(32)
    pairing.queries = pairing.keys = 9 * torch.eye(16, 32)[None, None]
    assert pairing.weight_on_own_key() == pytest.approx(1)
    assert pairing.error().item() == pytest.approx(0, abs=1e-6)


def test_every_knob_moves_the_result() -> None:
    first = compare_scores((4,), num_steps=2)["dot-product"]
    for change in ({"learning_rate": 0.02}, {"num_steps": 3}, {"num_seeds": 1}):
        assert compare_scores((4,), **({"num_steps": 2} | change))["dot-product"] != first
