"""Token embeddings and output logits for a source and a target vocabulary.

A shared or tied table is one parameter under one name. Vaswani et al. 2017, section 3.4; tying: Press and Wolf 2017.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from vit.config import check


class TokenTables(nn.Module):
    """Vectors are multiplied by √c, to unit variance when initialized with std 1/√c; logits have no bias."""

    def __init__(
        self, width: int, source_vocabulary: int, target_vocabulary: int, *, share: bool, tie_output: bool
    ) -> None:
        super().__init__()
        rule = f"the source has {source_vocabulary} tokens and the target {target_vocabulary}: they need one vocabulary"
        check(not share or source_vocabulary == target_vocabulary, "model.share_embeddings", share, rule)
        self.factor = width**0.5
        self.source_table = nn.Embedding(source_vocabulary, width)
        self.target_table = None if share else nn.Embedding(target_vocabulary, width)
        self.output = None if tie_output else nn.Linear(width, target_vocabulary, bias=False)

    def source(self, tokens: Tensor) -> Tensor:
        """`b n -> b n c`."""
        return embedding(tokens, self.source_table.weight) * self.factor

    def target(self, tokens: Tensor) -> Tensor:
        """`b m -> b m c`."""
        return embedding(tokens, self._target_weight()) * self.factor

    def logits(self, vectors: Tensor) -> Tensor:
        """`b m c -> b m vocabulary`."""
        return linear(vectors, self._target_weight()) if self.output is None else self.output(vectors)

    def _target_weight(self) -> Tensor:
        table = self.source_table if self.target_table is None else self.target_table
        return table.weight
