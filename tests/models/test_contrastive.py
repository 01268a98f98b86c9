"""The contrastive loss against its definition, and the model around an encoder."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import ResNetConfig, ViTConfig
from vit.data.augmented import AugmentedBatch
from vit.engine import make_accelerator
from vit.models import Classifier, ResNet, VisionTransformer
from vit.models.contrastive import ContrastiveModel, ProjectionConfig
from vit.randomness import SampleRandom
from vit.tasks.contrastive.metrics import nt_xent_losses, step_losses

SHAPE = ProjectionConfig(hidden=12, width=6)


def unit_vectors(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, 2, 5, dtype=torch.float64, generator=generator), dim=2)


def by_definition(views: Tensor, temperature: float) -> list[float]:
    """Chen et al. 2020, equation 1 and algorithm 1, one pair at a time; images a, b, …"""
    flat = [view for image in views for view in image]
    losses = []
    for place, view in enumerate(flat):
        scores = [math.exp(float(view @ each) / temperature) for each in flat]
        other = place + 1 if place % 2 == 0 else place - 1
        losses.append(-math.log(scores[other] / (sum(scores) - scores[place])))
    return [(first + second) / 2 for first, second in zip(losses[::2], losses[1::2], strict=True)]


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_loss_is_that_of_the_paper(temperature: float) -> None:
    views = unit_vectors(7)
    ours = nt_xent_losses(views, views, torch.ones(7), 0, temperature)
    torch.testing.assert_close(ours, torch.tensor(by_definition(views, temperature), dtype=torch.float64))


def test_a_part_of_the_step_is_compared_with_all_of_it() -> None:
    views = unit_vectors(9)
    whole = nt_xent_losses(views, views, torch.ones(9), 0, 0.2)
    parts = [nt_xent_losses(views[a:b], views, torch.ones(9), a, 0.2) for a, b in ((0, 4), (4, 5), (5, 9))]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_broken_images_are_compared_with_none() -> None:
    views, intact = unit_vectors(6), torch.tensor([1.0, 0, 1, 1, 0, 1])
    losses = nt_xent_losses(views, views, intact, 0, 0.2)
    expected = torch.tensor(by_definition(views[intact > 0], 0.2), dtype=torch.float64)
    torch.testing.assert_close(losses[intact > 0], expected)
    assert losses.isfinite().all()


def test_an_image_alone_has_nothing_to_learn() -> None:
    views = unit_vectors(1)
    assert nt_xent_losses(views, views, torch.ones(1), 0, 0.2).item() == 0


def test_each_view_of_an_image_has_the_models_random_numbers_of_its_own() -> None:
    """Whichever images are in the batch."""
    states: list[Tensor] = []

    class Remembers(nn.Module):
        def forward(self, images: Tensor, *, rng: SampleRandom) -> Tensor:
            states.append(rng.state)
            return F.normalize(images.flatten(1), dim=1)

    for positions in (torch.tensor([3, 0, 7]), torch.tensor([7, 3])):
        images = torch.rand(len(positions), 2, 3, 4, 4)
        batch = AugmentedBatch(images, torch.zeros(len(positions), 3), positions, torch.ones(len(positions)))
        step_losses(Remembers(), batch, SampleRandom.at(0, 0, positions), 0.2, make_accelerator("cpu", "fp32"))
    whole, part = (each.view(-1, 2) for each in states)
    assert whole.unique().numel() == 6
    assert torch.equal(part, whole[[2, 0]])


def vit(**changes: Any) -> VisionTransformer:
    config: dict[str, Any] = {
        "image_size": (8, 8),
        "patch_size": (4, 4),
        "width": 16,
        "depth": 2,
        "num_heads": 2,
        "num_classes": 0,
    }
    return VisionTransformer(ViTConfig(**{**config, **changes}))


ENCODERS: dict[str, Callable[[], Classifier]] = {
    "class token": vit,
    "mean": lambda: vit(pooling="gap", class_token=False),
    "class token and mean": lambda: vit(pooling="cls_gap"),
    "representation": lambda: vit(representation_width=24),
    "two tokens": lambda: vit(distillation_token=True),
    "resnet": lambda: ResNet(ResNetConfig(depth=18, stem="cifar", width=16, num_classes=0, image_size=(8, 8))),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_unit_vectors_and_a_gradient_for_every_parameter(name: str) -> None:
    """Several processes wait for each gradient."""
    torch.manual_seed(0)
    model = ContrastiveModel(ENCODERS[name](), SHAPE)
    vectors = model(torch.rand(8, 3, 8, 8))
    assert vectors.shape == (8, 6)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(8))
    views = vectors.unflatten(0, (4, 2))
    nt_xent_losses(views, views, torch.ones(4), 0, 0.2).sum().backward()
    untrained = [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not untrained


def test_parameters_have_a_depth() -> None:
    model = ContrastiveModel(vit(), SHAPE)
    layers = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert layers["encoder.class_token"] == 0
    assert layers["encoder.blocks.1.attention.qkv.weight"] == 2
    assert layers["encoder.norm.weight"] == 3
    assert layers["projection.0.weight"] == model.num_layers == 4
    exempt = model.no_weight_decay()
    assert {"encoder.class_token", "projection.2.bias"} <= exempt
    assert not {"projection.2.weight", "encoder.blocks.0.attention.qkv.weight"} & exempt
