"""Attention with its projections, for Transformer blocks and pooling heads.

`SelfAttention` projects one sequence to queries, keys and values in one fused product; `MultiHeadAttention` takes two
sequences and any widths. Both call `attend`. Vaswani et al. 2017; QK-norm: Dehghani et al. 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from einops import rearrange
from torch import Tensor, nn

from vit.attention.cache import KeyValueCache
from vit.attention.core import DOT_PRODUCT, attend, attention_weights
from vit.attention.scores import Additive, Score
from vit.config import check
from vit.linear import project
from vit.randomness import SampleRandom


class SelfAttention(nn.Module):
    """`b n c -> b n c`. `stream` selects the random numbers of attention dropout and is unique within a model.

    `output_norm`: a norm before the output's projection (EVA-02: Fang et al. 2023). `norm`: the kind of all norms.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        output_bias: bool = True,
        qk_norm: bool = False,
        output_norm: bool = False,
        norm_eps: float = 1e-6,
        norm: type[nn.LayerNorm] | type[nn.RMSNorm] = nn.LayerNorm,
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
        self.query_norm = norm(width // num_heads, norm_eps) if qk_norm else nn.Identity()
        self.key_norm = norm(width // num_heads, norm_eps) if qk_norm else nn.Identity()
        self.output_norm = norm(width, norm_eps) if output_norm else nn.Identity()
        self.output = nn.Linear(width, width, bias=output_bias)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        rotate: Callable[[Tensor], Tensor] | None = None,
        rng: SampleRandom | None = None,
        cache: KeyValueCache | None = None,
        num_queries: int | None = None,
    ) -> Tensor:
        """`rotate` is applied to queries and keys (rotary positions), `b h n d -> b h n d`. With a `cache`, `tokens`
        follow the cached ones and attend to them too; the keys of `mask` are then all of them. With `num_queries`, only
        that many of the first tokens attend and are returned; mask and bias then have only their rows.
        """
        query, key, value = self.heads(tokens)
        if rotate is not None:
            query, key = rotate(query), rotate(key)
        if num_queries is not None:
            query = query[:, :, :num_queries]
        if cache is not None:
            key, value = cache.append(key, value)
        dropout = self.dropout_rate if self.training else 0.0
        rng = rng.fork(self.stream) if rng is not None and dropout > 0 else None
        attended = attend(query, key, value, mask=mask, bias=bias, dropout=dropout, rng=rng, backend=self.backend)
        return project(self.output, self.output_norm(attended.transpose(1, 2).flatten(2)))  # b n (h d)

    def heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (normalised with QK-norm) and values, `b h n d` each."""
        # Unbind before the transpose: the gradients are then joined by one copy, not two. No einops: four patterns per
        # block cost 5 % of a small model's forward pass of one image.
        (b, n, width), heads = tokens.shape, self.num_heads
        parts = project(self.qkv, tokens).reshape(b, n, 3, heads, width // heads).unbind(2)  # b n h d, three times
        query, key, value = (part.transpose(1, 2) for part in parts)  # b h n d
        return self.query_norm(query), self.key_norm(key), value


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Widths in a `MultiHeadAttention` besides `query_width`; None: that width, or its share of one head."""

    key: int | None = None
    """Width of the sequence that keys are projected from."""
    value: int | None = None
    """Width of the sequence that values are projected from."""
    query_head: int | None = None
    """Width of one head's queries (p_q)."""
    key_head: int | None = None
    """Width of one head's keys (p_k), None: `query_head`. Only the score `Additive` allows them to differ."""
    value_head: int | None = None
    """Width of one head's values (p_v), None: `query_head`."""
    output: int | None = None
    """Width of the result (p_o)."""


class MultiHeadAttention(nn.Module):
    """`b n q, b m k, b m v -> b n o`: queries, keys and values from sequences of any widths, with any `score`."""

    def __init__(
        self,
        query_width: int,
        num_heads: int,
        *,
        widths: Widths = Widths(),
        bias: bool = True,
        score: Score = DOT_PRODUCT,
        dropout_rate: float = 0.0,
        backend: str = "auto",
        stream: int = 0,
    ) -> None:
        super().__init__()
        divides = widths.query_head is not None or query_width % num_heads == 0
        check(divides, "num_heads", num_heads, f"it must divide query_width ({query_width}); or give query_head")
        query_head = widths.query_head or query_width // num_heads
        key_head, value_head = widths.key_head or query_head, widths.value_head or query_head
        rule = f"it must be query_head ({query_head}) unless the score is Additive"
        check(key_head == query_head or isinstance(score, Additive), "key_head", key_head, rule)
        self.num_heads = num_heads
        self.score = score
        self.dropout_rate = dropout_rate
        self.backend = backend
        self.stream = stream
        self.query = nn.Linear(query_width, num_heads * query_head, bias=bias)
        self.key = nn.Linear(widths.key or query_width, num_heads * key_head, bias=bias)
        self.value = nn.Linear(widths.value or query_width, num_heads * value_head, bias=bias)
        self.output = nn.Linear(num_heads * value_head, widths.output or query_width, bias=bias)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        mask: Tensor | None = None,
        rng: SampleRandom | None = None,
    ) -> Tensor:
        return self.attend_to(queries, self.keys_and_values(keys, values), mask=mask, rng=rng)

    def keys_and_values(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Projected keys `b h m d` and values `b h m v`, to be reused where queries arrive one after another."""
        return self._heads(project(self.key, keys)), self._heads(project(self.value, values))

    def attend_to(
        self,
        queries: Tensor,
        keys_and_values: tuple[Tensor, Tensor],
        *,
        mask: Tensor | None = None,
        rng: SampleRandom | None = None,
    ) -> Tensor:
        """`forward` with the result of `keys_and_values`."""
        key, value = keys_and_values
        query = self._heads(project(self.query, queries))
        dropout = self.dropout_rate if self.training else 0.0
        rng = rng.fork(self.stream) if rng is not None and dropout > 0 else None
        attended = attend(
            query, key, value, mask=mask, score=self.score, dropout=dropout, rng=rng, backend=self.backend
        )
        return project(self.output, rearrange(attended, "b h n d -> b n (h d)"))

    def weights(self, queries: Tensor, keys: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The attention weights of every head, `b h n m`, before dropout."""
        query, key = self._heads(self.query(queries)), self._heads(self.key(keys))
        return attention_weights(query, key, mask=mask, score=self.score)

    def _heads(self, tokens: Tensor) -> Tensor:
        return rearrange(tokens, "b n (h d) -> b h n d", h=self.num_heads)
