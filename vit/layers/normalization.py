"""Why text models normalise each token by itself: statistics of a batch depend on the sentences in it.

Ba et al. 2016 (LayerNorm); Ioffe and Szegedy 2015 (BatchNorm). A measurement, not a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def batch_sensitivity(
    normalize: Callable[[Tensor], Tensor], sentence: Tensor, others: Sequence[Sequence[Tensor]]
) -> float:
    """Measure how much the normalised `sentence` (n, c) depends on the other sentences of its padded batch.

    The root mean square, over the sentence's numbers, of their standard deviation over the batches `others`: 0 for a
    norm of each token; 1 is the scale of the normalised numbers themselves. `normalize`: `b m c -> b m c`.
    """
    results = []
    for batch in others:
        padded = pad_sequence([sentence, *batch], batch_first=True)  # b m c
        results.append(normalize(padded)[0, : sentence.shape[0]])
    return torch.stack(results).var(dim=0, correction=0).mean().sqrt().item()
