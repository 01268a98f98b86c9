"""What the hypotheses of a search read and do not change: the source sentence, in whatever form a decoder wants it."""

from __future__ import annotations

import torch
from torch import Tensor


class SharedMemory:
    """Tensors (b, ...), one row a hypothesis. They are copied only when a row changes to another sentence, and so not
    while the hypotheses of one sentence take each other's places.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self._sentences = torch.arange(tensors[0].shape[0], device=tensors[0].device)

    def reorder(self, rows: Tensor) -> None:
        """Row `i` becomes what row `rows[i]` was; rows may be left out and repeated."""
        sentences = self._sentences[rows]
        if not torch.equal(sentences, self._sentences):
            self.tensors = tuple(tensor[rows] for tensor in self.tensors)
            self._sentences = sentences
