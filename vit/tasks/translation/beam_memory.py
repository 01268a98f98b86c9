"""Encoder outputs during beam search: the hypotheses read them and never change them."""

from __future__ import annotations

import torch
from torch import Tensor


class BeamMemory:
    """Tensors (b, ...), one row per hypothesis. Reordering the hypotheses of one sentence among themselves copies
    nothing.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self._sentences = torch.arange(tensors[0].shape[0], device=tensors[0].device)

    def reorder(self, rows: Tensor) -> None:
        """Replace row `i` by row `rows[i]`; rows may be left out and repeated."""
        sentences = self._sentences[rows]
        if not torch.equal(sentences, self._sentences):
            self.tensors = tuple(tensor[rows] for tensor in self.tensors)
            self._sentences = sentences
