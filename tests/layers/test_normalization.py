"""Row 13: LayerNorm and not BatchNorm, measured."""

import torch
from torch import nn

from vit.layers.normalization import moved_by_company

WIDTH = 16


def batch_norm(tokens):
    return nn.BatchNorm1d(WIDTH).train()(tokens.mT).mT


def companies(lengths):
    generator = torch.Generator().manual_seed(1)
    return [[torch.randn(length, WIDTH, generator=generator) for _ in range(31)] for length in lengths]


def test_batch_norm_moves_with_the_lengths_in_the_batch_and_layer_norm_does_not():
    sentence = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(0))
    layer = moved_by_company(nn.LayerNorm(WIDTH), sentence, companies((2, 6, 12, 30)))
    batch = moved_by_company(batch_norm, sentence, companies((2, 6, 12, 30)))
    batch_of_one_length = moved_by_company(batch_norm, sentence, companies((6, 6, 6, 6)))
    assert layer < 1e-6
    assert batch > 0.2
    assert batch > 2 * batch_of_one_length


def test_by_hand():
    """The sentence (0, 2) is centred at 1 alone and at 2 beside (2, 4): it moves by ±0.5 around the mean."""
    sentence, company = torch.tensor([[0.0], [2.0]]), [torch.tensor([[2.0], [4.0]])]
    moved = moved_by_company(lambda tokens: tokens - tokens.mean(), sentence, [[], company])
    assert moved == 0.5
