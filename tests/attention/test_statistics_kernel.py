"""The Triton kernel of the statistics against the map of all weights in float64.

On a CUDA device where there is one, else in triton's interpreter (see `tests/conftest.py`).
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from tests.attention.test_statistics import Case, D, H
from vit.attention.backends import Refused
from vit.attention.scores import Cosine, GaussianKernel
from vit.attention.statistics import attention_statistics

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LONG = 37
"""Keys, more than one block of them; and no size divides another."""

CASES = {
    "dead rows, bias, bfloat16": Case(n=5, m=LONG, mask="dead rows", bias=True, dtype=torch.bfloat16),
    "cross-attention and a table": Case(n=LONG, m=7, cross=True, table=True, groups=1),
    "causal": Case(n=3, m=LONG, mask="causal", groups=H),
}
MORE_CASES = {
    **{mask: Case(m=71, mask=mask) for mask in ("none", "padding", "padding of rows", "window", "segments", "nothing")},
    "one a query, float16": Case(m=71, mask="one a query", bias=True, dtype=torch.float16, groups=H),
    "a wide head": Case(n=3, m=LONG, width=131),
    "one token": Case(n=1, m=3, groups=1),
    "cross-attention": Case(n=71, m=5, cross=True, mask="dead rows"),
}
SLOW = [pytest.param(case, marks=pytest.mark.slow, id=name) for name, case in MORE_CASES.items()]


@pytest.mark.parametrize("case", [*(pytest.param(case, id=name) for name, case in CASES.items()), *SLOW])
def test_against_the_map(case: Case) -> None:
    case.check(DEVICE, backend="triton")


@pytest.mark.cuda
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in {**CASES, **MORE_CASES}.items()])
def test_on_a_device(case: Any) -> None:
    case.check("cuda", backend="triton")


def test_inner_product_scores_without_optional_statistics() -> None:
    query, key = torch.randn(2, 1, 1, 3, D, device=DEVICE).unbind(0)
    found, expected = (
        attention_statistics(query, key, score=Cosine(), scale=3.0, backend=backend)
        for backend in ("triton", "streamed")
    )
    torch.testing.assert_close(found.entropy, expected.entropy)
    torch.testing.assert_close(found.self_mass, expected.self_mass)
    assert found.distance is None
    assert found.mass == {}


def test_no_queries_and_no_keys() -> None:
    nothing, some = torch.zeros(1, 2, 0, D, device=DEVICE), torch.zeros(1, 2, 3, D, device=DEVICE)
    assert attention_statistics(nothing, some, backend="triton").entropy.shape == (1, 2, 0)
    found = attention_statistics(some, nothing, cross=True, backend="triton")
    assert found.entropy.tolist() == torch.zeros(1, 2, 3).tolist()


@pytest.mark.parametrize(
    ("message", "dtype", "width", "options"),
    [
        ("not torch.float64, use 'streamed'", torch.float64, 8, {}),
        ("at most 256", torch.float32, 257, {}),
        ("GaussianKernel is not an inner product", torch.float32, 8, {"score": GaussianKernel()}),
        ("leave block_size out", torch.float32, 8, {"block_size": 4}),
    ],
)
def test_refusals(message: str, dtype: torch.dtype, width: int, options: dict[str, Any]) -> None:
    query, key = torch.zeros(2, 1, 1, 3, width, dtype=dtype, device=DEVICE)
    with pytest.raises(Refused, match=message):
        attention_statistics(query, key, backend="triton", **options)
    assert attention_statistics(query, key, **options).entropy.shape == (1, 1, 3)


def test_a_cpu_is_refused_except_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.language as tl

    from vit.attention.backends import triton_blocks

    monkeypatch.setattr(triton_blocks, "INTERPRETED", tl.constexpr(False))
    vectors = torch.zeros(2, 1, 1, 3, 8)
    with pytest.raises(Refused, match="use 'streamed'"):
        attention_statistics(*vectors, backend="triton")
