"""Models that only answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from vit import create_model, for_inference
from vit.layers.packed import PackedLinear, packing_pays

TINY = {"image_size": 32, "patch_size": 8, "width": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
SHAPES = (
    {},
    {"pooling": "gap", "class_token": False, "positions": "rope"},
    {"pooling": "map", "qk_norm": True, "feedforward": "swiglu", "num_registers": 2, "layer_scale": 0.1},
)
needs_packing = pytest.mark.skipif(not packing_pays(torch.bfloat16), reason="oneDNN has no bfloat16 on this processor")


def build(**options: object) -> nn.Module:
    torch.manual_seed(0)
    model = create_model("vit", **{**TINY, **options}).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def images() -> Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("options", SHAPES, ids=("class token", "rotary", "map"))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2), (torch.float64, 1e-5)])
def test_it_answers_as_the_model_does(options: dict[str, object], dtype: torch.dtype, tolerance: float) -> None:
    model = build(**options)
    answer = for_inference(model, dtype)(images().to(dtype))
    expected = model.eval()(images())
    assert answer.dtype == dtype
    assert not answer.requires_grad
    assert (answer.float() - expected).abs().max() < tolerance * expected.abs().max()


def test_the_model_stays_as_it_was() -> None:
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin = for_inference(model, torch.bfloat16)
    assert model.training
    assert not any(module.training for module in twin.modules())
    assert all(parameter.requires_grad and parameter.dtype == torch.float32 for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products_are_the_layers_own(bias: bool) -> None:
    layer = nn.Linear(19, 13, bias=bias)
    x = torch.randn(2, 7, 19)
    assert torch.allclose(PackedLinear(layer)(x), layer(x), atol=1e-6)
    half = nn.Linear(19, 13, bias=bias).bfloat16()
    exact = linear(x.bfloat16().double(), half.weight.double(), half.bias.double() if bias else None)
    assert (PackedLinear(half)(x.bfloat16()).double() - exact).abs().max() < 2**-8 * exact.abs().max()


@needs_packing
def test_every_linear_layer_is_packed_where_it_pays() -> None:
    kinds = [type(module) for module in for_inference(build(), torch.bfloat16).modules()]
    assert kinds.count(PackedLinear) == 2 * 4 + 1
    assert nn.Linear not in kinds
    for plain in (for_inference(build(), torch.bfloat16, packed=False), for_inference(build(), torch.float64)):
        assert PackedLinear not in [type(module) for module in plain.modules()]


@needs_packing
def test_what_a_packed_model_cannot_do_is_said() -> None:
    twin = for_inference(build(), torch.bfloat16)
    with pytest.raises(ValueError, match="gives no gradients"):
        twin(images().bfloat16().requires_grad_())
    with pytest.raises(ValueError, match="is not saved"):
        twin.state_dict()


def test_a_type_of_whole_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype: torch.int8 is not valid"):
        for_inference(build(), torch.int8)
