"""The linear layer and the type of products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vit import compiling, linear
from vit.linear import matmul_dtype, project


@pytest.mark.parametrize(
    ("given", "autocast", "expected"),
    [
        (torch.float32, None, torch.float32),
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float16, torch.float16),
        (torch.float64, torch.bfloat16, torch.float64),
        (torch.uint8, torch.bfloat16, torch.uint8),
    ],
)
def test_the_type_of_a_product(given: torch.dtype, autocast: torch.dtype | None, expected: torch.dtype) -> None:
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        assert matmul_dtype(torch.zeros(2, 2, dtype=given)) == expected
        if given.is_floating_point and (autocast or given) != torch.float16:
            vector = torch.zeros(2, 2, dtype=given)
            assert nn.functional.linear(vector, vector).dtype == expected


class Projection(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(5, 3, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return project(self.layer, x)


def steps(module: Projection, x: torch.Tensor, *, autocast: bool = False) -> list[str]:
    """The operators that the compiled module calls."""
    found: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.extend(str(node.target) for node in graph.graph.nodes if node.op in ("call_function", "call_method"))
        return graph.forward

    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        compiled = torch.compile(module, backend=keep, fullgraph=True)(x)
        if x.device.type == "cpu":
            torch.testing.assert_close(compiled, module(x), rtol=2e-2, atol=2e-2)
    return found


@pytest.mark.parametrize(
    ("dtype", "autocast", "options", "multiplies", "expected"),
    [
        (torch.float32, True, {}, True, True),
        (torch.bfloat16, False, {}, True, True),
        (torch.bfloat16, True, {}, True, True),
        (torch.float32, False, {}, True, False),
        (torch.float64, True, {}, True, False),
        (torch.float32, True, {}, False, False),
        (torch.bfloat16, False, {"bias": False}, True, False),
        (torch.bfloat16, False, {"device": "meta"}, True, False),
    ],
)
def test_a_bias_is_added_separately_where_that_is_faster(
    dtype: torch.dtype,
    autocast: bool,
    options: dict[str, Any],
    multiplies: bool,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear, "MULTIPLIES_BFLOAT16", multiplies)
    x = torch.randn(2, 4, 5, dtype=dtype, device=options.get("device", "cpu"))
    found = steps(Projection(dtype=dtype, **options), x, autocast=autocast)
    assert any("add" in name for name in found) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.register_forward_hook(lambda *given: given[2] * 0),
        lambda layer: layer.register_forward_pre_hook(lambda *given: (given[1][0] * torch.nan,)),
        lambda layer: setattr(layer, "forward", lambda x: nn.Linear.forward(layer, x) * 0),
    ],
    ids=["hook", "hook before", "other forward"],
)
def test_other_layers_are_called(change: Callable[[nn.Linear], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MULTIPLIES_BFLOAT16", True)
    module, x = Projection(dtype=torch.bfloat16), torch.ones(1, 2, 5, dtype=torch.bfloat16)
    change(module.layer)
    torch._dynamo.reset()
    found = torch.compile(module, backend="eager")(x)
    assert (torch.nan_to_num(found) == 0).all()
    assert not linear.is_plain(module.layer)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_layer_with_backward_hooks_is_called(register: str) -> None:
    layer = nn.Linear(5, 3)
    assert linear.is_plain(layer)
    getattr(layer, register)(lambda *_: None)
    assert not linear.is_plain(layer)


def test_an_exported_layer_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MULTIPLIES_BFLOAT16", True)
    module, x = Projection(dtype=torch.bfloat16), torch.ones(1, 2, 5, dtype=torch.bfloat16)
    for strict in (True, False) if compiling._TELLS_EXPORTS else (False,):
        program = torch.export.export(module, (x,), strict=strict)
        targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        assert targets == ["aten.linear.default"]
