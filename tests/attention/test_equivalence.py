"""Every backend × mask × shape × type against `reference` in float64; and against torch's own attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from tests.attention.equivalence import (
    DOCUMENT,
    FEATURES,
    TOLERANCE,
    Cell,
    document,
    largest_difference,
    matrix,
    uncompiled_flex,
)
from vit.attention.backends import BACKENDS, Refused
from vit.attention.core import attend


def _slow(cell: Cell) -> bool:
    """The interpreter takes a second a cell: most of its cells are for `pytest -m slow`."""
    return cell.backend == "triton" and (cell.dtype != "fp32" or cell.mask not in ("none", "rows without keys"))


CELLS = [pytest.param(cell, marks=[pytest.mark.slow] if _slow(cell) else [], id=str(cell)) for cell in matrix()]


@pytest.fixture(autouse=True)
def _no_compiling() -> Iterator[None]:
    with uncompiled_flex():
        yield


def judge(cell: Cell, gradient: bool) -> str:
    """`equal`, or the backend's refusal; any other result fails."""
    try:
        difference = largest_difference(cell, gradient)
    except Refused as refused:
        return str(refused)
    assert difference < TOLERANCE[cell.dtype]
    return "equal"


@pytest.mark.parametrize("cell", CELLS)
def test_cell(cell: Cell) -> None:
    """Forward and gradients; where gradients are refused by name, forward."""
    verdict = judge(cell, gradient=True)
    if verdict != "equal":
        assert cell.backend == "flex", "the others answer every cell with its gradients"
        assert verdict.startswith(f"backend: '{cell.backend}' is not valid: ")
        verdict = judge(cell, gradient=False)
    assert verdict == "equal", "every cell of the matrix can be computed forward"


NO_INNER_PRODUCT = ("score: additive", "score: Gaussian kernel")
REFUSED = {(backend, score) for backend in BACKENDS if backend != "reference" for score in NO_INNER_PRODUCT}
REFUSED |= {(backend, "dropout by sample") for backend in ("sdpa", "flex")}


@pytest.mark.parametrize("feature", [name for name in FEATURES if not name.startswith(("mask", "shape", "type"))])
@pytest.mark.parametrize("backend", BACKENDS)
def test_feature(feature: str, backend: str) -> None:
    """Bias, dropout, widths and scores."""
    verdict = judge(Cell(backend, **FEATURES[feature]), gradient=True)
    if verdict != "equal":
        forward = judge(Cell(backend, **FEATURES[feature]), gradient=False) == "equal"
        assert (backend, feature) in REFUSED or (backend == "flex" and forward)
        assert verdict.startswith(f"backend: '{backend}' is not valid: ")


@pytest.mark.slow
def test_the_document_matches_the_backends() -> None:
    assert DOCUMENT.read_text() == document(), "run python -m tests.attention.equivalence"


def test_equal_to_torchs_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, 7, dtype=torch.float64, generator=generator) for n in (11, 13, 13))
    mask = torch.rand(2, 1, 11, 13, generator=generator) < 0.6
    mask[..., 0] = True
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(attend(query, key, value, mask=mask, backend="reference"), expected)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    heads_a_group=st.integers(1, 3),
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    width=st.integers(1, 9),
    value_width=st.integers(1, 9),
    density=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
@pytest.mark.parametrize("backend", ["matmul", "sdpa"])
def test_any_shape_and_any_mask(
    backend: str,
    batch: int,
    groups: int,
    heads_a_group: int,
    queries: int,
    keys: int,
    width: int,
    value_width: int,
    density: float,
    seed: int,
) -> None:
    """In float64, so that equal means equal; rows without keys included."""
    generator = torch.Generator().manual_seed(seed)
    draw: dict[str, Any] = {"dtype": torch.float64, "generator": generator}
    query = torch.randn(batch, groups * heads_a_group, queries, width, **draw).requires_grad_()
    key = torch.randn(batch, groups, keys, width, **draw).requires_grad_()
    value = torch.randn(batch, groups, keys, value_width, **draw).requires_grad_()
    mask = torch.rand(batch, 1, queries, keys, generator=generator) < density
    answers = []
    for name in ("reference", backend):
        answer = attend(query, key, value, mask=mask, backend=name)
        answers.append([answer, *torch.autograd.grad(answer.square().sum(), (query, key, value))])
    for expected, found in zip(*answers, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
