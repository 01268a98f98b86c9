"""Head ablation: accuracy without each head in turn (Michel et al. 2019; Voita et al. 2019).

A head is ablated by zeroing the columns of the output projection that read it; the projection's bias stays. The caller
measures the accuracy, on images of its choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit.analysis.attention_calls import attention_reader
from vit.analysis.unsupported import Unsupported
from vit.config import check_arguments
from vit.config.arguments import check_type

if TYPE_CHECKING:
    from vit.figures.style import Figure

OUTPUTS = ("output", "proj", "out_proj", "o_proj")
"""The libraries' names of the projection that follows the heads."""
CONVENTIONS = {
    "ablated": "accuracy with one head's columns of the output projection zeroed, the bias kept, nothing retrained",
    "lost": "accuracy of the whole model minus that",
    "rank_correlation": "Spearman, over all heads of all layers, of lost accuracy and the quantity",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadAblation:
    """`ablated` l h: accuracy without that head; `whole`: with all of them."""

    whole: float
    ablated: Tensor
    layers: list[str]

    @property
    def lost(self) -> Tensor:
        return self.whole - self.ablated

    def rank_correlation(self, quantity: Tensor) -> float:
        """Spearman's, of lost accuracy and a quantity `l h`; NaN where one of them is constant."""
        from scipy.stats import rankdata

        pair = torch.stack([torch.from_numpy(rankdata(values.flatten().cpu())) for values in (self.lost, quantity)])
        if float(pair.std(dim=1).min()) == 0:
            return float("nan")
        return float(torch.corrcoef(pair)[0, 1])

    def plot(self, quantities: Mapping[str, Tensor] | None = None) -> Figure:
        """Draw the lost accuracy of every head as a map, and against each of `quantities` (`l h`) by its name."""
        from vit.figures import plot_head_ablation

        return plot_head_ablation(self.lost, quantities or {})

    def numbers(self, **quantities: Tensor) -> dict[str, Any]:
        """`quantities` by name, `l h` each: distance, entropy."""
        return {
            "whole": self.whole,
            "ablated": self.ablated.tolist(),
            "lost": self.lost.tolist(),
            "layers": self.layers,
            **{name: values.tolist() for name, values in quantities.items()},
            "rank_correlation": {name: self.rank_correlation(values) for name, values in quantities.items()},
            "conventions": CONVENTIONS,
        }


@check_arguments
def ablate_heads(
    model: nn.Module, measure: Callable[[], float], *, progress: Callable[[int, int], None] | None = None
) -> HeadAblation:
    """`measure()` the accuracy with all heads and without each one; the weights are restored afterwards.

    `progress` is given the number of heads done and of all. Unsupported for attention without a projection of its own.
    """
    attentions = attention_outputs(model)
    counts = {num_heads for _, num_heads in attentions.values()}
    if len(counts) != 1:
        raise Unsupported(f"model: layers with {sorted(counts)} heads are not valid: all must have as many")
    (num_heads,) = counts
    whole = measure()
    check_type("measure()", whole, float)
    ablated = torch.zeros(len(attentions), num_heads, dtype=torch.float64)
    for layer, (projection, _) in enumerate(attentions.values()):
        for head in range(num_heads):
            with without_head(projection, head, num_heads):
                ablated[layer, head] = measure()
            if progress is not None:
                progress(layer * num_heads + head + 1, ablated.numel())
    return HeadAblation(whole=whole, ablated=ablated, layers=list(attentions))


def attention_outputs(model: nn.Module) -> dict[str, tuple[nn.Linear, int]]:
    """Output projection and number of heads of every self-attention, by its name. Unsupported where there is none."""
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
        found[name] = (projection, int(num_heads))
    if not found:
        raise Unsupported(f"model: {type(model).__name__} is not valid: it has no attention that can be read")
    return found


@contextmanager
def without_head(projection: nn.Linear, head: int, num_heads: int) -> Iterator[None]:
    """Zero the columns that read a head inside, and restore them afterwards."""
    width = projection.in_features // num_heads
    columns = slice(head * width, (head + 1) * width)
    kept = projection.weight.detach()[:, columns].clone()
    try:
        with torch.no_grad():
            projection.weight[:, columns] = 0
        yield
    finally:
        with torch.no_grad():
            projection.weight[:, columns] = kept
