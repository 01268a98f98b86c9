"""Attention of text models: encoder, causal and cross-attention maps of every head, and Bahdanau's alignment.

Self-attention comes from `capture`; attention between two sequences from the vectors its projections give. Padding asks
nothing and is in no statistic. Letters: see `attend.py`; l layers. Knows no words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.analysis.capture import AttentionLayer, capturing
from vit.attention.attend import attention_weights
from vit.attention.masks import padding
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

    ValueError for a model without attention.
    """
    from_source, from_target = source_lengths.cpu(), target_lengths.cpu()
    with evaluating(model):
        if isinstance(model, RecurrentTranslator):
            weights = model.alignment(source, source_lengths, target)[None, :, None]  # l b h m n
            return TextAttention(maps={"alignment": weights.cpu()}, lengths={"alignment": (from_target, from_source)})
        maps: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}

        def consume(layer: AttentionLayer) -> None:
            maps[layer.name.partition(".")[0]].append(layer.weights().cpu())

        with capturing(model, consume), crossing(model) as vectors:
            model(source, source_lengths, target)
    mask = padding(source_lengths, source.shape[1])
    cross = [attention_weights(query, key, mask=mask, score=module.score) for module, query, key in vectors()]
    return TextAttention(
        maps={"cross": torch.stack(cross).cpu(), **{kind: torch.stack(found) for kind, found in maps.items()}},
        lengths={
            "cross": (from_target, from_source),
            "encoder": (from_source, from_source),
            "decoder": (from_target, from_target),
        },
    )


@contextmanager
def crossing(model: nn.Module) -> Iterator[Any]:
    """Gives a function that says, of every `MultiHeadAttention` that was used inside, its queries and keys."""
    modules = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    queries: dict[int, Tensor] = {}
    keys: dict[int, Tensor] = {}
    handles = []

    def vectors() -> Iterator[tuple[MultiHeadAttention, Tensor, Tensor]]:
        for place, module in enumerate(modules):
            pair = (rearrange(found[place], "b n (h d) -> b h n d", h=module.num_heads) for found in (queries, keys))
            yield module, next(pair), next(pair)

    def keep(found: dict[int, Tensor], place: int) -> Any:
        return lambda _module, _args, output: found.__setitem__(place, output)

    try:
        for place, module in enumerate(modules):
            handles.append(module.query.register_forward_hook(keep(queries, place)))
            handles.append(module.key.register_forward_hook(keep(keys, place)))
        yield vectors
    finally:
        for handle in handles:
            handle.remove()


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
