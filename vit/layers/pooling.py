"""Pooling by attention: a learned query attends to the tokens, `b n c -> b c`.

With projections and a feed-forward layer, MAP (Zhai et al. 2022); without both, AIMv2's (Fini et al. 2024).
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.attention.core import attend
from vit.attention.multihead import MultiHeadAttention
from vit.config import ViTConfig
from vit.layers.feedforward import ACTIVATIONS, FeedForward
from vit.layers.norm import build_norm
from vit.linear import project


class AttentionPool(nn.Module):
    """A learned query attends to the tokens, then a feed-forward layer: `b n c -> b c`."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        heads, ratio = config.pool_heads or config.num_heads, config.pool_mlp_ratio or config.mlp_ratio
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.attention = MultiHeadAttention(config.width, heads, backend=config.backend)
        self.norm = build_norm(config)
        activation = ACTIVATIONS["gelu" if config.feedforward == "swiglu" else config.feedforward]
        self.feedforward = FeedForward(config.width, round(config.width * ratio), 0.0, 0, activation)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.attention(self.probe.expand(tokens.shape[0], -1, -1), tokens, tokens)  # b 1 c
        return (x + self.feedforward(self.norm(x)))[:, 0]


class QueryPool(nn.Module):
    """A learned query, one part a head, attends to the tokens: `b n c -> b c`."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.num_heads = config.pool_heads or config.num_heads
        self.backend = config.backend
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.key = nn.Linear(config.width, config.width, bias=config.qkv_bias)
        self.value = nn.Linear(config.width, config.width, bias=config.qkv_bias)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        query = self.probe.expand(tokens.shape[0], -1, -1)  # b 1 c
        parts = (query, project(self.key, tokens), project(self.value, tokens))
        heads = (rearrange(part, "b n (h d) -> b h n d", h=self.num_heads) for part in parts)
        attended = attend(*heads, backend=self.backend)  # b h 1 d
        return project(self.output, rearrange(attended, "b h 1 d -> b (h d)"))
