"""Encoder and decoder layers of text models, normalised before a sublayer or after it.

Post-norm: Vaswani et al. 2017; pre-norm: Xiong et al. 2020. Dropout is applied to a sublayer's result, before the sum.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import gelu, relu

from vit.attention.cache import KeyValueCache
from vit.attention.multihead import MultiHeadAttention, SelfAttention
from vit.config import LayerConfig
from vit.layers.feedforward import FeedForward
from vit.layers.regularization import Dropout
from vit.randomness import SampleRandom

ENCODER_STREAMS = 5
DECODER_STREAMS = 7
"""Number of random streams of a layer, starting at its `stream`."""

Rotate = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": relu, "gelu": gelu}


class Residual(nn.Module):
    """The residual connection around a sublayer f: `x + dropout(f(norm(x)))`, or `norm(x + dropout(f(x)))`."""

    def __init__(self, config: LayerConfig, stream: int) -> None:
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.dropout = Dropout(config.dropout_rate, stream)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], rng: SampleRandom | None) -> Tensor:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)), rng)
        return self.norm(x + self.dropout(sublayer(x), rng))

    def input(self, x: Tensor) -> Tensor:
        """`x` as the sublayer reads it: normalised in a pre-norm layer."""
        return self.norm(x) if self.pre else x


class EncoderLayer(nn.Module):
    """`b n c -> b n c`; every token attends to all that `mask` allows."""

    def __init__(self, config: LayerConfig, stream: int) -> None:
        super().__init__()
        self.self_attention = _self_attention(config, stream)
        self.self_residual = Residual(config, stream + 1)
        self.feedforward = _feedforward(config, stream + 2)
        self.feedforward_residual = Residual(config, stream + 4)

    def forward(
        self, x: Tensor, mask: Tensor | None, rotate: Rotate | None = None, rng: SampleRandom | None = None
    ) -> Tensor:
        x = self.self_residual(x, lambda t: self.self_attention(t, mask=mask, rotate=rotate, rng=rng), rng)
        return self.feedforward_residual(x, self.feedforward, rng)


class DecoderLayer(nn.Module):
    """`b m c -> b m c`, with cross-attention to the keys and values of a memory `b n c` (`project_memory`)."""

    def __init__(self, config: LayerConfig, stream: int) -> None:
        super().__init__()
        self.self_attention = _self_attention(config, stream)
        self.self_residual = Residual(config, stream + 1)
        self.cross_attention = MultiHeadAttention(
            config.width,
            config.num_heads,
            dropout_rate=config.attention_dropout_rate,
            backend=config.backend,
            stream=stream + 2,
        )
        self.cross_residual = Residual(config, stream + 3)
        self.feedforward = _feedforward(config, stream + 4)
        self.feedforward_residual = Residual(config, stream + 6)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory in this layer, computed once for all target tokens."""
        return self.cross_attention.keys_and_values(memory, memory)

    def forward(
        self,
        x: Tensor,
        memory: tuple[Tensor, Tensor],
        memory_mask: Tensor,
        *,
        mask: Tensor | None = None,
        rotate: Rotate | None = None,
        rng: SampleRandom | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        x = self.read_target(x, mask=mask, rotate=rotate, rng=rng, cache=cache)
        x = self.cross_residual(x, lambda t: self.cross_attention.attend_to(t, memory, mask=memory_mask, rng=rng), rng)
        return self.feedforward_residual(x, self.feedforward, rng)

    def read_target(
        self,
        x: Tensor,
        *,
        mask: Tensor | None,
        rotate: Rotate | None,
        rng: SampleRandom | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """The self-attention sublayer; `mask` is None where `cache` holds the past and `x` is one token."""
        return self.self_residual(
            x, lambda t: self.self_attention(t, mask=mask, rotate=rotate, rng=rng, cache=cache), rng
        )

    def alignment(self, x: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """Cross-attention weights after `read_target`, averaged over heads: b m n."""
        queries = self.cross_residual.input(x)
        return self.cross_attention.weights(queries, memory, mask=memory_mask).mean(dim=1)


def _self_attention(config: LayerConfig, stream: int) -> SelfAttention:
    return SelfAttention(
        config.width,
        config.num_heads,
        dropout_rate=config.attention_dropout_rate,
        backend=config.backend,
        stream=stream,
    )


def _feedforward(config: LayerConfig, stream: int) -> FeedForward:
    # no dropout here: `Residual` applies it to the sublayer's result (Vaswani et al., section 5.4)
    return FeedForward(config.width, config.hidden_width, 0.0, stream, ACTIVATIONS[config.activation])
