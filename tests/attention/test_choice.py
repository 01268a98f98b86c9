"""The backend that `auto` chooses, observed from the one that was called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from vit.attention import choice, core
from vit.attention.backends import BACKENDS, AttentionOptions
from vit.attention.choice import MATMUL_FIRST, SDPA_FIRST, WITHOUT_SDPA, preferences
from vit.attention.core import attend
from vit.attention.scores import GaussianKernel, ScaledDotProduct
from vit.randomness import SampleRandom

B, H, N, M, D = 2, 3, 5, 7, 4


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the backends that answered, in order."""
    names: list[str] = []

    def spy(name: str) -> Any:
        def backend(*arguments: Any) -> Tensor:
            answer = BACKENDS[name](*arguments)
            names.append(name)
            return answer

        return backend

    monkeypatch.setattr(core, "BACKENDS", {name: spy(name) for name in BACKENDS})
    return names


def ask(dtype: torch.dtype = torch.float32, learns: bool = False, keys: int = M, **options: Any) -> Tensor:
    query = torch.randn(B, H, N, D, dtype=dtype, requires_grad=learns)
    key = torch.randn(B, H, keys, D, dtype=dtype)
    return attend(query, key, key, **options)


LEARNED: dict[str, Any] = {"bias": torch.zeros(1, H, N, M, requires_grad=True)}
ORDERS = (SDPA_FIRST, MATMUL_FIRST, WITHOUT_SDPA)
BY_SAMPLE = {"dropout": 0.1, "rng": SampleRandom.at(0, 0, torch.arange(B))}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "sdpa"),
        ({"learns": True}, "sdpa"),
        ({"mask": torch.ones(N, M, dtype=torch.bool)}, "sdpa"),
        ({"dropout": 0.1}, "sdpa"),
        (BY_SAMPLE, "matmul"),
        ({"bias": torch.zeros(N, M)}, "sdpa"),
        (LEARNED, "matmul"),
        ({"score": GaussianKernel()}, "reference"),
        (LEARNED | {"score": GaussianKernel()}, "reference"),
        ({"dtype": torch.bfloat16, "learns": True}, "matmul"),
        ({"dtype": torch.bfloat16, "learns": True, "keys": 513}, "sdpa"),
        ({"dtype": torch.bfloat16, "learns": True, "keys": 513} | BY_SAMPLE, "matmul"),
    ],
)
def test_choice_of_auto_on_a_cpu(options: dict[str, Any], expected: str, answered: list[str]) -> None:
    ask(**options)
    assert answered == [expected]


MASKED = {"mask": torch.ones(N, 1, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("options", "fast", "slow"),
    [
        ({"keys": 640}, "matmul", "sdpa"),
        ({"keys": 641}, "sdpa", "sdpa"),
        ({"keys": 640} | MASKED, "matmul", "sdpa"),
        ({"keys": 641} | MASKED, "sdpa", "sdpa"),
        ({"learns": True}, "matmul", "matmul"),
        ({"learns": True, "keys": 513}, "sdpa", "sdpa"),
    ],
)
def test_in_bfloat16_it_depends_on_the_processor(
    options: dict[str, Any], fast: str, slow: str, answered: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for multiplies in (True, False):
        monkeypatch.setattr(choice, "MULTIPLIES_BFLOAT16", multiplies)
        ask(dtype=torch.bfloat16, **options)
    ask(dtype=torch.float16, **options)
    assert answered == [fast, slow, slow]


@pytest.mark.parametrize(
    ("learns", "keys", "expected"), [(True, 128, "matmul"), (True, 129, "sdpa"), (False, 128, "sdpa")]
)
def test_choice_of_auto_when_compiled_on_a_cpu(learns: bool, keys: int, expected: str) -> None:
    graphs: list[str] = []

    def backend(module: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(module.code)
        return module.forward

    query, key = torch.randn(B, H, N, D, requires_grad=learns), torch.randn(B, H, keys, D)
    attended = torch.compile(attend, backend=backend, fullgraph=True, dynamic=False)(query, key, key)
    torch.testing.assert_close(attended, attend(query, key, key, backend="reference"))
    assert len(graphs) == 1
    assert ("scaled_dot_product_attention" in graphs[0]) == (expected == "sdpa")
    assert "baddbmm" not in graphs[0]  # the compiler writes out its summand, though that counts nothing


def test_gradients_count_only_while_they_are_recorded(answered: list[str]) -> None:
    with torch.no_grad():
        ask(**LEARNED)
        ask(dtype=torch.float16, learns=True)
    assert answered == ["sdpa", "sdpa"]


def test_the_last_choice_supports_everything() -> None:
    assert {order[-1] for order in ORDERS} == {"reference"}
    assert all(set(order) <= set(BACKENDS) for order in ORDERS)


def test_on_cuda_torchs_kernels_come_first_and_triton_by_name_only() -> None:
    class OnCuda:
        device = torch.device("cuda")
        dtype = torch.float32
        requires_grad = True
        shape = (B, H, N, D)

    plain = AttentionOptions(score=ScaledDotProduct(), scale=None, mask=None, bias=None)
    learned = AttentionOptions(score=ScaledDotProduct(), scale=None, mask=None, bias=LEARNED["bias"])
    for options in (plain, learned):
        assert preferences(OnCuda(), OnCuda(), options) == ("sdpa", "matmul", "reference")  # type: ignore[arg-type]
    assert not any("triton" in order for order in ORDERS)
    assert "triton" in BACKENDS
