"""The linear layer and the type of products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from vit import linear
from vit.linear import Linear, product_type


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
        assert product_type(torch.zeros(2, 2, dtype=given)) == expected
        if given.is_floating_point and (autocast or given) != torch.float16:
            weight = torch.zeros(2, 2, dtype=torch.float64 if given == torch.float64 else given)
            assert nn.functional.linear(torch.zeros(2, 2, dtype=given), weight).dtype == expected


def ways(layer: nn.Module, x: torch.Tensor, *, autocast: bool) -> list[str]:
    """The products of the compiled layer's program."""
    found: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.extend(str(node.target) for node in graph.graph.nodes if node.op in ("call_function", "call_method"))
        return graph.forward

    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        compiled = torch.compile(layer, backend=keep, fullgraph=True)(x)
        torch.testing.assert_close(compiled, layer(x), rtol=2e-2, atol=2e-2)
    return found


@pytest.mark.parametrize("multiplies", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("autocast", [True, False])
def test_a_bias_is_added_apart_where_that_pays(
    multiplies: bool, bias: bool, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "MULTIPLIES_BFLOAT16", multiplies)
    torch.manual_seed(0)
    found = ways(Linear(5, 3, bias=bias), torch.randn(2, 5), autocast=autocast)
    assert any("add" in name for name in found) == (multiplies and bias and autocast)


def test_an_exported_layer_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "MULTIPLIES_BFLOAT16", True)
    program = torch.export.export(Linear(5, 3).bfloat16(), (torch.randn(2, 5).bfloat16(),))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert targets == ["aten.linear.default"]
