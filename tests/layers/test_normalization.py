"""Row 13: LayerNorm instead of BatchNorm, measured."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vit.layers.normalization import batch_sensitivity

WIDTH = 16


def batch_norm(tokens: Tensor) -> Tensor:
    return nn.BatchNorm1d(WIDTH).train()(tokens.mT).mT


def other_sentences(lengths: tuple[int, ...]) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(length, WIDTH, generator=generator) for _ in range(31)] for length in lengths]


def test_batch_norm_moves_with_the_lengths_in_the_batch_and_layer_norm_does_not() -> None:
    sentence = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    layer = batch_sensitivity(nn.LayerNorm(WIDTH), sentence, other_sentences((2, 6, 12, 30)))
    batch = batch_sensitivity(batch_norm, sentence, other_sentences((2, 6, 12, 30)))
    batch_of_one_length = batch_sensitivity(batch_norm, sentence, other_sentences((6, 6, 6, 6)))
    assert layer < 1e-6
    assert batch > 0.2
    assert batch > 2 * batch_of_one_length


def test_by_hand() -> None:
    """The sentence (0, 2) is centred at 1 alone and at 2 together with (2, 4): it moves by ±0.5 around the mean."""
    sentence, others = torch.tensor([[0.0], [2.0]]), [torch.tensor([[2.0], [4.0]])]
    moved = batch_sensitivity(lambda tokens: tokens - tokens.mean(), sentence, [[], others])
    assert moved == 0.5
