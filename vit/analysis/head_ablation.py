"""Head ablation: accuracy without each head in turn (Michel et al. 2019; Voita et al. 2019).

A head is ablated by zeroing the columns of the output projection that read it; the projection's bias stays. The caller
says which images the model gets right, of its choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vit.analysis.attention_calls import attention_reader
from vit.analysis.unsupported import Unsupported
from vit.config import check, check_arguments
from vit.config.arguments import check_type
from vit.evaluation.statistics import paired_share_interval

if TYPE_CHECKING:
    from vit.figures.style import Figure

OUTPUTS = ("output", "proj", "out_proj", "o_proj", "attn_out_proj")
"""The libraries' names of the projection that follows the heads."""
CONVENTIONS = {
    "ablated": "accuracy with one head's columns of the output projection zeroed, the bias kept, nothing retrained",
    "lost": "accuracy of the whole model minus that",
    "interval": "of lost, 95 %, paired over images (Agresti and Min 2005); of each head alone, not of all at once",
    "rank_correlation": "Spearman, over all heads of all blocks, of lost accuracy and the quantity",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadAblation:
    """`ablated` l h: accuracy without that head; `whole`: with all of them."""

    whole: float
    ablated: Tensor
    interval: Tensor
    """The ends of the 95 % interval of `lost` over the images, 2 l h."""
    layers: list[str]
    num_images: int
    blocks: list[int] | None = None
    """The number of each layer among all of the model's attentions, from 1 on; None: those of a model's first ones."""

    @property
    def lost(self) -> Tensor:
        return self.whole - self.ablated

    def rank_correlation(self, quantity: Tensor) -> float:
        """Spearman's, of lost accuracy and a quantity `l h`; NaN where one of them is constant."""
        from scipy.stats import spearmanr

        lost, other = (values.flatten().cpu().numpy() for values in (self.lost, quantity))
        if np.ptp(lost) == 0 or np.ptp(other) == 0:
            return float("nan")
        return float(spearmanr(lost, other).statistic)

    def plot(self, quantities: Mapping[str, Tensor] | None = None) -> Figure:
        """Draw the lost accuracy of every head as a map and, with intervals, against `quantities` (`l h`) by name."""
        from vit.figures import plot_head_ablation

        return plot_head_ablation(self.lost, quantities or {}, interval=self.interval, blocks=self.blocks)

    def numbers(self, quantities: Mapping[str, Tensor]) -> dict[str, Any]:
        """`quantities` by name, `l h` each: distance, entropy."""
        return {
            "whole": self.whole,
            "ablated": self.ablated.tolist(),
            "lost": self.lost.tolist(),
            "interval": self.interval.tolist(),
            "num_images": self.num_images,
            "layers": self.layers,
            **{name: values.tolist() for name, values in quantities.items()},
            "rank_correlation": {name: self.rank_correlation(values) for name, values in quantities.items()},
            "conventions": CONVENTIONS,
        }


@check_arguments
def ablate_heads(
    model: nn.Module,
    hits: Callable[[], Tensor],
    *,
    layers: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HeadAblation:
    """Accuracy with all heads and without each one; the weights are restored afterwards.

    `hits()` says of each image, always the same ones, whether the model is right: bool (n,). `progress` is given the
    number of heads done and of all. `layers`: names of the attention modules, in order; None: every one that can be
    read. Unsupported for attention without a projection of its own, and for a layer that cannot be read.
    """
    attentions = attention_outputs(model)
    numbers = {name: number for number, name in enumerate(attentions, 1)}
    if layers is not None:
        if missing := [name for name in layers if name not in attentions]:
            raise Unsupported(f"model: {missing[0]} is not valid: its heads cannot be left out")
        attentions = {name: attentions[name] for name in layers}
    counts = {output.num_heads for output in attentions.values()}
    if len(counts) != 1:
        raise Unsupported(f"model: blocks with {sorted(counts)} heads are not valid: all must have as many")
    (num_heads,) = counts
    whole = _checked(hits(), None)
    only_whole, only_ablated = np.zeros((2, len(attentions), num_heads))
    for block, output in enumerate(attentions.values()):
        for head in range(num_heads):
            with without_head(output, head):
                ablated = _checked(hits(), len(whole))
            only_whole[block, head] = int((whole & ~ablated).sum())
            only_ablated[block, head] = int((ablated & ~whole).sum())
            if progress is not None:
                progress(block * num_heads + head + 1, only_whole.size)
    accuracy, total = float(whole.double().mean()), np.full_like(only_whole, len(whole))
    return HeadAblation(
        whole=accuracy,
        ablated=torch.from_numpy(accuracy - (only_whole - only_ablated) / total),
        interval=torch.from_numpy(np.stack(paired_share_interval(only_whole, only_ablated, total))),
        layers=list(attentions),
        num_images=len(whole),
        blocks=[numbers[name] for name in attentions],
    )


def _checked(hits: Tensor, expected: int | None) -> Tensor:
    """The caller's result, on the CPU. ValueError unless it is bool (n,), of as many images every time."""
    check_type("hits()", hits, Tensor)
    shape = tuple(hits.shape)
    check(hits.dtype == torch.bool and len(shape) == 1 and shape[0] > 0, "hits()", shape, "it must be bool (n,)")
    check(expected in (None, len(hits)), "hits()", shape, f"it must be of the same {expected} images every time")
    return hits.cpu()


class HeadsOutput(NamedTuple):
    """The projection after the heads; what it reads beside them (a feed-forward's activations) comes after them."""

    projection: nn.Linear
    num_heads: int
    width: int
    """Columns that read a head."""


def attention_outputs(model: nn.Module) -> dict[str, HeadsOutput]:
    """The output projection of every self-attention, by its name. Unsupported where there is none."""
    found = {}
    for name, module in model.named_modules():
        if attention_reader(module) is None:
            continue
        projection = next((part for attribute in OUTPUTS if (part := getattr(module, attribute, None))), None)
        if not isinstance(projection, nn.Linear):
            kind = type(module).__name__
            raise Unsupported(
                f"model: {name} ({kind}) is not valid: it has no output projection ({', '.join(OUTPUTS)})"
            )
        num_heads: Any = getattr(module, "num_heads", None) or module.num_attention_heads
        split: Any = getattr(module, "in_split", None)  # timm's blocks of parallel branches: feed-forward, q, k, v
        read = projection.in_features if split is None else split[-1]
        found[name] = HeadsOutput(projection, int(num_heads), read // int(num_heads))
    if not found:
        raise Unsupported(f"model: {type(model).__name__} is not valid: it has no attention that can be read")
    return found


@contextmanager
def without_head(output: HeadsOutput, head: int) -> Iterator[None]:
    """Zero the columns that read a head inside, and restore them afterwards."""
    projection, columns = output.projection, slice(head * output.width, (head + 1) * output.width)
    kept = projection.weight.detach()[:, columns].clone()
    try:
        with torch.no_grad():
            projection.weight[:, columns] = 0
        yield
    finally:
        with torch.no_grad():
            projection.weight[:, columns] = kept
