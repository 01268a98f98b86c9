"""Mimetic initialization: what the products of attention's matrices begin as. The others are tested by training."""

from __future__ import annotations

import pytest
import torch
from einops import rearrange

from vit.config import ViTConfig
from vit.config.vit import Initialization
from vit.models import VisionTransformer
from vit.models.initialization import MIMETIC_QUERY_KEY, MIMETIC_VALUE_OUTPUT

WIDTH, HEADS = 192, 6


@pytest.fixture(scope="module")
def models() -> dict[str, VisionTransformer]:
    made: dict[str, VisionTransformer] = {}
    inits: tuple[Initialization, ...] = ("xavier", "mimetic")
    for init in inits:
        torch.manual_seed(0)
        config = ViTConfig(image_size=(8, 8), patch_size=(4, 4), width=WIDTH, depth=2, num_heads=HEADS, init=init)
        made[init] = VisionTransformer(config)
    return made


def test_the_product_of_output_and_values_is_noise_less_the_identity(models: dict[str, VisionTransformer]) -> None:
    noise_scale, identity_scale = MIMETIC_VALUE_OUTPUT
    weights = models["mimetic"].state_dict()
    for block in range(2):
        values = weights[f"blocks.{block}.attention.qkv.weight"][2 * WIDTH :]
        product = weights[f"blocks.{block}.attention.output.weight"] @ values
        noise = product + identity_scale * torch.eye(WIDTH)
        assert noise.mean().abs() < 0.002
        assert float(noise.std()) == pytest.approx(noise_scale * WIDTH**-0.5, rel=0.02)


def test_a_heads_scores_are_the_best_approximation_of_its_rank(models: dict[str, VisionTransformer]) -> None:
    """So their trace is that of the identity's part and more than a random approximation of the rank would have."""
    noise_scale, identity_scale = MIMETIC_QUERY_KEY
    query, key, _ = models["mimetic"].state_dict()["blocks.0.attention.qkv.weight"].chunk(3)
    for head_query, head_key in zip(query.chunk(HEADS), key.chunk(HEADS), strict=True):
        values = torch.linalg.svdvals(head_query.mT @ head_key)
        rank = WIDTH // HEADS
        assert values[rank] < 1e-5
        # the largest of 192 singular values of 0.7 noise + 0.7 identity; the norm of the whole is known
        assert values[0] > identity_scale + noise_scale * 0.6
        whole = WIDTH * (noise_scale**2 + identity_scale**2)
        assert (values**2).sum() > 1.5 * whole / HEADS
        assert (head_query.mT @ head_key).trace() > identity_scale * rank * 0.5
        torch.testing.assert_close(head_query @ head_query.mT, head_key @ head_key.mT, atol=1e-4, rtol=1e-4)


def test_heads_differ_and_the_rest_is_as_with_xavier(models: dict[str, VisionTransformer]) -> None:
    plain, mimetic = models["xavier"].state_dict(), models["mimetic"].state_dict()
    differing = {name for name in plain if not torch.equal(plain[name], mimetic[name])}
    assert differing == {f"blocks.{i}.attention.{name}.weight" for i in range(2) for name in ("qkv", "output")}
    heads = rearrange(mimetic["blocks.0.attention.qkv.weight"][:WIDTH], "(h d) c -> h d c", h=HEADS)
    assert (heads[0] - heads[1]).norm() > heads[0].norm() / 2
