"""Why text models normalise each token by itself: a batch's statistics move with the sentences that are in it.

Ba et al. 2016 (LayerNorm); Ioffe and Szegedy 2015 (BatchNorm). A measurement, no layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def moved_by_company(
    normalize: Callable[[Tensor], Tensor], sentence: Tensor, companies: Sequence[Sequence[Tensor]]
) -> float:
    """How far the normalised `sentence` (n, c) moves with the sentences that share its padded batch.

    The root mean square, over the sentence's numbers, of their standard deviation over the `companies`: 0 for a norm
    of each token; 1 would be as much as the normalised numbers themselves. `normalize`: `b m c -> b m c`.
    """
    answers = []
    for company in companies:
        padded = pad_sequence([sentence, *company], batch_first=True)  # b m c
        answers.append(normalize(padded)[0, : sentence.shape[0]])
    return torch.stack(answers).var(dim=0, correction=0).mean().sqrt().item()
