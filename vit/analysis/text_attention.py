"""Attention of text models: encoder, causal and cross-attention maps of every head, and Bahdanau's alignment.

Self-attention comes from `capture`; attention between two sequences from the calls of our own module, proved alike.
Padding asks nothing and is in no statistic. Letters: see `attend.py`; l layers. Knows no words.
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
from vit.analysis.capture import AttentionLayer, capturing
from vit.analysis.proof import prove
from vit.attention.attend import attention_weights
from vit.attention.multihead import MultiHeadAttention
from vit.evaluation.evaluate import evaluating
from vit.models.recurrent import RecurrentTranslator
from vit.models.text_encoder import TextEncoder
from vit.models.text_transformer import TextTransformer

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
    """Of each kind: real queries and real keys of every sentence, b each."""

    def statistics(self) -> dict[str, dict[str, Tensor]]:
        """Of each kind the quantities of `CONVENTIONS`, l h each."""
        return {kind: statistics_of(maps, *self.lengths[kind], kind=kind) for kind, maps in self.maps.items()}

    def numbers(self) -> dict[str, Any]:
        found = {
            kind: {name: values.tolist() for name, values in of_kind.items()}
            for kind, of_kind in self.statistics().items()
        }
        return {**found, "conventions": CONVENTIONS}


@torch.no_grad()
def encoder_attention(model: TextEncoder, tokens: Tensor, lengths: Tensor) -> TextAttention:
    """Of a text encoder: tokens `b n`, real tokens of each (b,)."""
    layers: list[Tensor] = []
    with evaluating(model), capturing(model, lambda layer: layers.append(layer.weights().cpu())):
        model(tokens, lengths)
    real = lengths.cpu()
    return TextAttention(maps={"encoder": torch.stack(layers)}, lengths={"encoder": (real, real)})


@torch.no_grad()
def translator_attention(
    model: TextTransformer | RecurrentTranslator,
    source: Tensor,
    source_lengths: Tensor,
    target: Tensor,
    target_lengths: Tensor,
) -> TextAttention:
    """Of a translator reading `source` `b n` and `target` `b m`, with the numbers of real tokens of each (b,).

    ValueError for a model without attention, and for what `capturing` and `crossing` refuse.
    """
    from_source, from_target = source_lengths.cpu(), target_lengths.cpu()
    with evaluating(model):
        if isinstance(model, RecurrentTranslator):
            weights = model.alignment(source, source_lengths, target)[None, :, None]  # l b h m n
            return TextAttention(maps={"alignment": weights.cpu()}, lengths={"alignment": (from_target, from_source)})
        maps: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}

        def consume(layer: AttentionLayer) -> None:
            maps[layer.name.partition(".")[0]].append(layer.weights().cpu())

        cross: list[Tensor] = []
        with capturing(model, consume), crossing(model, cross.append):
            model(source, source_lengths, target)
    return TextAttention(
        maps={"cross": torch.stack(cross).cpu(), **{kind: torch.stack(found) for kind, found in maps.items()}},
        lengths={
            "cross": (from_target, from_source),
            "encoder": (from_source, from_source),
            "decoder": (from_target, from_target),
        },
    )


@contextmanager
def crossing(model: nn.Module, consume: Callable[[Tensor], None]) -> Iterator[None]:
    """The map, b h n m, of every call of a `MultiHeadAttention` inside is given to `consume`, in order.

    ValueError where a call's output is not what its queries, keys and values give (`proof`), and where a module was
    not called. The calls are watched no longer afterwards, whatever happens.
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
    """Its `attend_to`, proved and told."""
    attend_to = module.attend_to

    def finish(attended: Tensor, _: Rows) -> Tensor:
        return module.output(rearrange(attended, "b h r v -> b r (h v)"))

    def proved(
        queries: Tensor, keys_and_values: tuple[Tensor, Tensor], *, mask: Tensor | None = None, **others: Any
    ) -> Tensor:
        output: Tensor = attend_to(queries, keys_and_values, mask=mask, **others)
        query = rearrange(module.query(queries), "b n (h d) -> b h n d", h=module.num_heads)
        heads = Heads(query, *keys_and_values, mask, bias=None, scale=None, finish=finish, input=queries)
        prove(name, heads, output, score=module.score)
        seen.add(name)
        consume(attention_weights(query, heads.key, mask=mask, score=module.score))
        return output

    return proved


def _restore(module: MultiHeadAttention, own: Any) -> None:
    del module.attend_to
    if own is not None:
        module.attend_to = own  # type: ignore[method-assign]


def statistics_of(maps: Tensor, queries: Tensor, keys: Tensor, *, kind: str) -> dict[str, Tensor]:
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
