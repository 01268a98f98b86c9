"""Attention with its projections: what a Transformer block and a pooling head use.

`SelfAttention` reads queries, keys and values off one sequence with one fused product; `MultiHeadAttention`
takes two sequences and any widths. Both hand the computing to `attend`. Vaswani et al. 2017; QK-norm:
Dehghani et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable

from einops import rearrange
from torch import Tensor, nn

from vit.attention.attend import DOT_PRODUCT, attend
from vit.attention.scores import Score
from vit.config import check
from vit.randomness import SampleRandom


class SelfAttention(nn.Module):
    """`b n c -> b n c`. `stream` numbers the random numbers of the weights' dropout; it is unique in a
    model.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        dropout_rate: float = 0.0,
        backend: str = "auto",
        stream: int = 0,
    ) -> None:
        super().__init__()
        check(width % num_heads == 0, "model.num_heads", num_heads, f"it must divide model.width ({width})")
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.backend = backend
        self.stream = stream
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.query_norm = nn.LayerNorm(width // num_heads, norm_eps) if qk_norm else nn.Identity()
        self.key_norm = nn.LayerNorm(width // num_heads, norm_eps) if qk_norm else nn.Identity()
        self.output = nn.Linear(width, width)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        rotate: Callable[[Tensor], Tensor] | None = None,
        rng: SampleRandom | None = None,
    ) -> Tensor:
        """`rotate` is applied to queries and keys (rotary positions), `b h n d -> b h n d`."""
        query, key, value = self.heads(tokens)
        if rotate is not None:
            query, key = rotate(query), rotate(key)
        dropout = self.dropout_rate if self.training else 0.0
        rng = rng.fork(self.stream) if rng is not None and dropout > 0 else None
        attended = attend(query, key, value, mask=mask, bias=bias, dropout=dropout, rng=rng, backend=self.backend)
        return self.output(rearrange(attended, "b h n d -> b n (h d)"))

    def heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (normalised where QK-norm is on) and values, `b h n d` each."""
        query, key, value = rearrange(
            self.qkv(tokens), "b n (three h d) -> three b h n d", three=3, h=self.num_heads
        ).unbind(0)
        return self.query_norm(query), self.key_norm(key), value


class MultiHeadAttention(nn.Module):
    """`b n q, b m k, b m v -> b n o`: queries from one sequence, keys and values from others, each of its own
    width.

    Widths left out are the query's; heads divide `query_width` unless `head_width` is given. Any `score`.
    """

    def __init__(
        self,
        query_width: int,
        num_heads: int,
        *,
        key_width: int | None = None,
        value_width: int | None = None,
        output_width: int | None = None,
        head_width: int | None = None,
        bias: bool = True,
        score: Score = DOT_PRODUCT,
        dropout_rate: float = 0.0,
        backend: str = "auto",
        stream: int = 0,
    ) -> None:
        super().__init__()
        divides = head_width is not None or query_width % num_heads == 0
        check(divides, "num_heads", num_heads, f"it must divide query_width ({query_width}); or give head_width")
        inner = num_heads * (head_width or query_width // num_heads)
        self.num_heads = num_heads
        self.score = score
        self.dropout_rate = dropout_rate
        self.backend = backend
        self.stream = stream
        self.query = nn.Linear(query_width, inner, bias=bias)
        self.key = nn.Linear(key_width or query_width, inner, bias=bias)
        self.value = nn.Linear(value_width or query_width, inner, bias=bias)
        self.output = nn.Linear(inner, output_width or query_width, bias=bias)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        mask: Tensor | None = None,
        rng: SampleRandom | None = None,
    ) -> Tensor:
        query, key, value = (
            rearrange(project(tokens), "b n (h d) -> b h n d", h=self.num_heads)
            for project, tokens in ((self.query, queries), (self.key, keys), (self.value, values))
        )
        dropout = self.dropout_rate if self.training else 0.0
        rng = rng.fork(self.stream) if rng is not None and dropout > 0 else None
        attended = attend(
            query, key, value, mask=mask, score=self.score, dropout=dropout, rng=rng, backend=self.backend
        )
        return self.output(rearrange(attended, "b h n d -> b n (h d)"))
