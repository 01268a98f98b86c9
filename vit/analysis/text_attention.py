"""Attention of text models: maps of every head, within a sequence and between two, and their statistics.

Self-attention comes from `capturing`; attention between two sequences from the calls of our own module, with the same
proof. Padding is no query and in no statistic. Notation: see `core.py`; l layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.attention_calls import Heads, Rows
from vit.analysis.capture import capturing
from vit.analysis.proof import prove_attention_output
from vit.attention.core import attention_weights
from vit.attention.multihead import MultiHeadAttention
from vit.evaluation.evaluate import evaluating
from vit.models.text_encoder import TextEncoder

CONVENTIONS = {
    "maps": "weights, a row for each query token; rows of real tokens sum to 1, padding stands at the end",
    "entropy": "of a row, nats; mean over real query tokens of all sentences",
    "distance": "tokens between query and key, weighted; self-attention only; mean alike",
    "first_mass": "weight on the first token; last_mass: on the last real one; self_mass: on the token itself",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TextAttention:
    """Maps of every kind that the model has, l b h n m: `encoder`, `decoder`, `cross`, or `alignment`.

    An alignment has one layer and one head.
    """

    maps: dict[str, Tensor]
    lengths: dict[str, tuple[Tensor, Tensor]]
    """Kind → real queries and real keys of every sentence, b each."""

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Kind → the quantities of `CONVENTIONS`, l h each."""
        return {
            kind: text_attention_statistics(maps, *self.lengths[kind], kind=kind) for kind, maps in self.maps.items()
        }

    def numbers(self) -> dict[str, Any]:
        found = {
            kind: {name: values.tolist() for name, values in of_kind.items()}
            for kind, of_kind in self.statistics().items()
        }
        return {**found, "conventions": CONVENTIONS}


@torch.no_grad()
def encoder_attention(model: TextEncoder, tokens: Tensor, lengths: Tensor) -> TextAttention:
    """Attention of a text encoder to tokens `b n`; `lengths` (b,) counts the real ones of each."""
    layers: list[Tensor] = []
    with evaluating(model), capturing(model, lambda layer: layers.append(layer.weights().cpu())):
        model(tokens, lengths)
    real = lengths.cpu()
    return TextAttention(maps={"encoder": torch.stack(layers)}, lengths={"encoder": (real, real)})


@contextmanager
def capture_text_attention(model: nn.Module, consume: Callable[[Tensor], None]) -> Iterator[None]:
    """The map, b h n m, of every call of a `MultiHeadAttention` inside is given to `consume`, in order.

    ValueError where a call's output does not follow from its queries, keys and values (`proof`), and where a module was
    not called. The modules are restored afterwards, whatever happens.
    """
    modules = {name: module for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    seen: set[str] = set()
    with ExitStack() as watched:
        for name, module in modules.items():
            own = module.__dict__.get("attend_to")
            module.attend_to = _proved(name, module, seen, consume)  # type: ignore[method-assign]
            watched.callback(_restore, module, own)
        yield
    if unseen := [name for name in modules if name not in seen]:
        raise ValueError(f"capture: {', '.join(unseen)} is not valid: no attention was computed in it")


def _proved(name: str, module: MultiHeadAttention, seen: set[str], consume: Callable[[Tensor], None]) -> Any:
    """The module's `attend_to`, whose every call is proved and its map consumed."""
    attend_to = module.attend_to

    def finish(attended: Tensor, _: Rows) -> Tensor:
        return module.output(rearrange(attended, "b h r v -> b r (h v)"))

    def proved(
        queries: Tensor, keys_and_values: tuple[Tensor, Tensor], *, mask: Tensor | None = None, **others: Any
    ) -> Tensor:
        output: Tensor = attend_to(queries, keys_and_values, mask=mask, **others)
        query = rearrange(module.query(queries), "b n (h d) -> b h n d", h=module.num_heads)
        heads = Heads(query, *keys_and_values, mask, bias=None, scale=None, finish=finish, input=queries)
        prove_attention_output(name, heads, output, score=module.score)
        seen.add(name)
        consume(attention_weights(query, heads.key, mask=mask, score=module.score))
        return output

    return proved


def _restore(module: MultiHeadAttention, own: Any) -> None:
    del module.attend_to
    if own is not None:
        module.attend_to = own  # type: ignore[method-assign]


def text_attention_statistics(maps: Tensor, queries: Tensor, keys: Tensor, *, kind: str) -> dict[str, Tensor]:
    """Means over the real queries of all sentences, l h each; `maps` l b h n m, real tokens of each sentence (b,)."""
    n, m = maps.shape[3:]
    real = (torch.arange(n) < queries[:, None])[None, :, None].to(maps.dtype)  # 1 b 1 n
    last = (keys - 1).clamp(min=0)[None, :, None, None, None].expand(*maps.shape[:4], 1)
    found = {
        "entropy": -torch.xlogy(maps, maps).sum(dim=-1),
        "first_mass": maps[..., 0],
        "last_mass": maps.gather(-1, last)[..., 0],
    }
    if kind in ("encoder", "decoder"):
        found["distance"] = (maps * (torch.arange(n)[:, None] - torch.arange(m)).abs()).sum(dim=-1)
        found["self_mass"] = maps.diagonal(dim1=-2, dim2=-1)
    return {name: (values * real).sum(dim=(1, 3)) / real.sum() for name, values in found.items()}
