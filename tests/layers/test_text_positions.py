"""Positions of text: hand values, the paper's formula, invariance of the rotation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vit.config.text_model import TextPositionKind
from vit.layers.text_positions import build_text_positions, rotation_along, sinusoidal


def test_sinusoids_by_hand() -> None:
    table = sinusoidal(torch.arange(3), 6)
    assert table.shape == (3, 6)
    assert table[0].tolist() == [0, 1, 0, 1, 0, 1]
    assert [round(value, 4) for value in table[1, :2].tolist()] == [0.8415, 0.5403]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 20_000), st.integers(1, 40))
def test_sinusoids_are_the_formula(place: int, half: int) -> None:
    width = 2 * half
    row = sinusoidal(torch.tensor([place]), width)[0]
    for k in range(half):
        angle = place / 10_000 ** (2 * k / width)
        assert math.isclose(row[2 * k], math.sin(angle), abs_tol=1e-6)
        assert math.isclose(row[2 * k + 1], math.cos(angle), abs_tol=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_rotated_products_depend_on_the_distance_alone(first: int, second: int, shift: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8, generator=generator, dtype=torch.float64).unbind(0)

    def product(query_place: int, key_place: int) -> Tensor:
        turned = [
            rotation_along(torch.tensor([place]), 8)(vector)
            for vector, place in ((query, query_place), (key, key_place))
        ]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(product(first, second), product(first + shift, second + shift), atol=1e-5, rtol=0)
    torch.testing.assert_close(rotation_along(torch.tensor([first]), 8)(query).norm(), query.norm(), atol=1e-6, rtol=0)


def test_rotation_by_hand() -> None:
    vectors = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)
    turned = rotation_along(torch.arange(3), 2)(vectors)[0, 0]
    expected = torch.tensor([[math.cos(place), math.sin(place)] for place in range(3)])
    torch.testing.assert_close(turned, expected)


def test_late_positions_are_as_exact_as_early_ones() -> None:
    place = 1_000_003
    vectors = torch.tensor([1.0, 0.0]).repeat_interleave(4).expand(1, 1, 1, 8)  # every pair is (1, 0)
    turned = rotation_along(torch.tensor([place]), 8)(vectors)[0, 0, 0].tolist()
    for k in range(4):
        angle = place / 10_000 ** (2 * k / 8)
        assert turned[k] == pytest.approx(math.cos(angle), abs=1e-6)
        assert turned[k + 4] == pytest.approx(math.sin(angle), abs=1e-6)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rope", "none"])
def test_a_later_start_continues_the_sequence(kind: TextPositionKind) -> None:
    positions = build_text_positions(kind, 12, 3, 11)
    for parameter in positions.parameters():
        torch.nn.init.normal_(parameter)
    tokens = torch.randn(2, 7, 12)
    whole, rest = positions(tokens), positions(tokens[:, 3:], start=3)
    torch.testing.assert_close(whole[:, 3:], rest)
    assert torch.equal(whole, tokens) == (kind in ("rope", "none"))
    rotation, later = positions.rotation(tokens), positions.rotation(tokens[:, 3:], start=3)
    assert (rotation is None) == (later is None) == (kind != "rope")
    if rotation is not None and later is not None:
        torch.testing.assert_close(rotation.cos[3:], later.cos)
        torch.testing.assert_close(rotation.signed_sin[3:], later.signed_sin)


def test_a_sequence_longer_than_its_positions_is_refused() -> None:
    positions = build_text_positions("learned", 4, 1, 5)
    positions(torch.randn(1, 5, 4))
    with pytest.raises(ValueError, match=r"model.max_length: 5 is not valid: a sequence has 6 tokens"):
        positions(torch.randn(1, 2, 4), start=4)
