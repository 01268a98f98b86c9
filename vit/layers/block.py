"""The pre-norm Transformer block (ViT, eq. 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from vit.attention.multihead import SelfAttention
from vit.config import ViTConfig
from vit.layers.feedforward import build_feedforward
from vit.layers.norm import NORMS, build_norm
from vit.layers.regularization import Dropout, LayerScale, StochasticDepth
from vit.randomness import SampleRandom

STREAMS = 6
"""Number of random streams of a block, starting at its `stream`."""


class Block(nn.Module):
    """`b n c -> b n c`. `depth_rate` is the rate of stochastic depth, `stream` the first of its random streams."""

    def __init__(self, config: ViTConfig, depth_rate: float, stream: int) -> None:
        super().__init__()
        width = config.width
        self.norm1 = build_norm(config)
        self.attention = SelfAttention(
            width,
            config.num_heads,
            qkv_bias=config.qkv_bias,
            output_bias=config.proj_bias,
            qk_norm=config.qk_norm,
            output_norm=config.attention_norm,
            norm_eps=config.norm_eps,
            norm=NORMS[config.norm],
            dropout_rate=config.attention_dropout_rate,
            backend=config.backend,
            stream=stream,
        )
        self.attention_dropout = Dropout(config.dropout_rate, stream + 1)
        self.scale1 = _layer_scale(config)
        self.depth1 = StochasticDepth(depth_rate, stream + 2)
        self.norm2 = build_norm(config)
        self.feedforward = build_feedforward(config, stream + 3)
        self.scale2 = _layer_scale(config)
        self.depth2 = StochasticDepth(depth_rate, stream + 5)

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        rotate: Callable[[Tensor], Tensor] | None = None,
        rng: SampleRandom | None = None,
        num_queries: int | None = None,
    ) -> Tensor:
        """`bias` on the attention scores and `rotate` of queries and keys encode positions. With `num_queries`, only
        that many of the first tokens are returned; the others are used as keys and values alone.
        """
        if num_queries is not None and bias is not None:
            bias = bias[:, :, :num_queries]
        attended = self.attention(self.norm1(x), bias=bias, rotate=rotate, rng=rng, num_queries=num_queries)
        branch = self.attention_dropout(attended, rng)
        x = x if num_queries is None else x[:, :num_queries]  # b q c
        x = x + self.depth1(self.scale1(branch), rng)
        return x + self.depth2(self.scale2(self.feedforward(self.norm2(x), rng)), rng)


def _layer_scale(config: ViTConfig) -> nn.Module:
    return nn.Identity() if config.layer_scale is None else LayerScale(config.width, config.layer_scale)
