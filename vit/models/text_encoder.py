"""The text encoder in BERT's layout (Devlin et al. 2019): a vector per token, or one per sentence.

Post-norm layers, learned positions, token types, exact GELU. MiniLM (Wang et al. 2020) and most sentence encoders are
the same in other sizes (mean pooling: Reimers and Gurevych 2019).
"""

from __future__ import annotations

from typing import Literal

import torch
from einops import einsum
from torch import Tensor, nn

from vit.attention.masks import padding
from vit.config import BertConfig, check, nearest
from vit.layers.regularization import Dropout
from vit.layers.text_layers import ENCODER_STREAMS, EncoderLayer
from vit.layers.text_positions import LearnedPositions
from vit.models.initialization import initialize_text
from vit.models.model import Model
from vit.randomness import SampleRandom

Pooling = Literal["mean", "cls", "pooler"]
EMBEDDING_STREAM, FIRST_LAYER_STREAM = 0, 1


class TextEncoder(Model):
    """`b n -> b n c`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.token_table = nn.Embedding(config.vocabulary_size, config.width)
        self.type_table = nn.Embedding(config.num_token_types, config.width)
        self.positions = LearnedPositions(config.max_length, config.width)
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.dropout = Dropout(config.dropout_rate, EMBEDDING_STREAM)
        layer = config.layer()
        self.layers = nn.ModuleList(
            EncoderLayer(layer, FIRST_LAYER_STREAM + index * ENCODER_STREAMS) for index in range(config.depth)
        )
        self.pooler = nn.Linear(config.width, config.width) if config.pooler else None
        initialize_text(self, "normal")

    def forward(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        rng: SampleRandom | None = None,
    ) -> Tensor:
        """The last layer's hidden states. See `hidden_states`."""
        return self.hidden_states(tokens, lengths, mask=mask, token_types=token_types, rng=rng)[-1]

    def hidden_states(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        rng: SampleRandom | None = None,
    ) -> tuple[Tensor, ...]:
        """The embeddings and the output of every layer, `b n c` each.

        Tokens that are not padding: the first `lengths` (b,) or where `mask` (b, n) is not 0; with neither, all.
        `token_types` (b, n) number the sentences of a pair; None: all 0. ValueError for both `lengths` and `mask`.
        """
        attention_mask = _attention_mask(tokens, lengths, mask)[:, None, None]  # b 1 1 n
        types = torch.zeros_like(tokens) if token_types is None else token_types
        x = self.positions(self.token_table(tokens) + self.type_table(types))
        x = self.dropout(self.norm(x), rng)
        states = [x]
        for layer in self.layers:
            x = layer(x, attention_mask, rng=rng)
            states.append(x)
        return tuple(states)

    def pool(self, hidden: Tensor) -> Tensor:
        """`tanh` of a linear layer on the first token's vector, `b n c -> b c`. ValueError without a pooler."""
        if self.pooler is None:
            raise ValueError("pooling: 'pooler' is not valid: the weights came without one; choose 'mean' or 'cls'")
        return torch.tanh(self.pooler(hidden[:, 0]))

    def sentence_embedding(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        token_types: Tensor | None = None,
        pooling: Pooling = "mean",
    ) -> Tensor:
        """One vector per sentence, `b c`: the mean over tokens without padding (0 if none), the first, or `pool`."""
        hidden = self(tokens, lengths, mask=mask, token_types=token_types)
        match pooling:
            case "mean":
                weights = _attention_mask(tokens, lengths, mask).to(hidden.dtype)
                return einsum(hidden, weights, "b n c, b n -> b c") / weights.sum(dim=1, keepdim=True).clamp(min=1)
            case "cls":
                return hidden[:, 0]
            case "pooler":
                return self.pool(hidden)
        raise ValueError(f"pooling: {pooling!r} is not valid: {nearest(pooling, ['mean', 'cls', 'pooler'])}")

    @property
    def num_layers(self) -> int:
        """Depth of the pooler; that of the embeddings is 0."""
        return len(self.layers) + 1

    def layer_of(self, parameter_name: str) -> int:
        """0: tables, positions and their norm; then the layers; then the pooler."""
        part, _, rest = parameter_name.partition(".")
        if part == "layers":
            return int(rest.partition(".")[0]) + 1
        return self.num_layers if part == "pooler" else 0

    def no_weight_decay(self) -> set[str]:
        """Norms, biases, positions and tokens."""
        return {name for name, p in self.named_parameters() if p.dim() <= 1 or "table" in name}


def _attention_mask(tokens: Tensor, lengths: Tensor | None, mask: Tensor | None) -> Tensor:
    """True for tokens that are not padding, `b n`."""
    if lengths is not None and mask is not None:
        raise ValueError("mask: it is not valid together with lengths: give one of them")
    if lengths is not None:
        return padding(lengths, tokens.shape[1])[:, 0, 0]
    if mask is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    check(mask.shape == tokens.shape, "mask", tuple(mask.shape), f"it must be b n, {tuple(tokens.shape)}")
    return mask.bool()
