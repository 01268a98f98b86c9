"""Peak memory against counts by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from vit.evaluation.memory import CUDA_METER, TENSOR_METER, inference_memory
from vit.layers.packed import PackedLinear
from vit.layers.quantized import QuantizedLinear, quantizes_here

CPU = torch.device("cpu")


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 50), nn.Linear(50, 20)
        self.register_buffer("table", torch.zeros(7))

    def forward(self, images: Tensor) -> Tensor:
        return self.second(self.first(images.flatten(1)).relu())


def test_two_layers_by_hand() -> None:
    """The images and both results of 50 live at once: the first layer's, and what the rectifier makes of it."""
    found = inference_memory(Layers().train(), (2, 2), batch_size=10, device=CPU)
    assert found.weights == 4 * (12 * 50 + 50 + 50 * 20 + 20 + 7)
    assert found.activations == 4 * 10 * (12 + 50 + 50)
    assert found.total == found.weights + found.activations
    assert found.meter == TENSOR_METER


def test_what_is_freed_is_not_counted() -> None:
    chain = nn.Sequential(*[nn.Linear(12, 12) for _ in range(20)])
    model = nn.Sequential(nn.Flatten(), chain)
    found = inference_memory(model, (2, 2), batch_size=10, device=CPU)
    assert found.activations == 4 * 10 * 12 * 3  # the images, a layer's input and its result


def test_a_view_of_a_weight_is_no_activation_and_one_written_in_place_neither() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 1000))

        def forward(self, images: Tensor) -> Tensor:
            assert self.weight.T.shape == (1000, 3)
            return images.add_(1).mul_(2)

    assert inference_memory(Views(), (2, 2), batch_size=10, device=CPU).activations == 4 * 10 * 12


def test_twice_the_batch_twice_the_activations() -> None:
    from vit import create_model

    model = create_model("vit_tiny_patch16_224", image_size=32, num_classes=4).train()
    one, two = (inference_memory(model, (32, 32), batch_size=size, device=CPU) for size in (2, 4))
    assert two.activations == pytest.approx(2 * one.activations, rel=0.02)
    assert two.weights == one.weights == 4 * sum(parameter.numel() for parameter in model.parameters())
    assert model.training


@pytest.mark.skipif(not quantizes_here(), reason="no x86 processor, or a torch without oneDNN")
@pytest.mark.parametrize(
    ("prepare", "size"),
    [(PackedLinear, 4 * (12 * 50 + 50)), (QuantizedLinear, 12 * 50 + 50 * (4 * 4 + 8))],
)
def test_weights_that_are_no_parameters_count(prepare: Callable[[nn.Linear], nn.Module], size: int) -> None:
    """In eight bits a channel has a scale, a sum, an offset and a bias of four bytes, and a zero of eight."""
    model = nn.Sequential(nn.Flatten(), prepare(nn.Linear(12, 50)))
    assert inference_memory(model, (2, 2), batch_size=1, device=CPU).weights == size


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_the_allocator_counts() -> None:
    found = inference_memory(Layers().cuda(), (2, 2), batch_size=1000, device=torch.device("cuda"))
    assert found.meter == CUDA_METER
    assert found.activations >= 4 * 1000 * (12 + 50 + 50)
