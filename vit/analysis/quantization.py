"""Cost of eight bits, layer by layer: accuracy and logits with a single linear layer quantised, each one in turn.

Tells which layers to leave out of `for_inference(model, "int8", keep=[…])`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from vit.config import check, check_arguments
from vit.evaluation.statistics import paired_share_interval
from vit.models.inference import check_quantizable, for_inference, quantizable_layers
from vit.models.model import Model
from vit.wording import markdown_table

if TYPE_CHECKING:
    from vit.figures.style import Figure

ALL = "all of them"
CONVENTIONS = {
    "quantized": "accuracy with this layer alone in eight bits, everything else in float32",
    "lost": "accuracy of the float32 model minus that",
    "interval": "of lost, 95 %, paired over images (Agresti and Min 2005); of each layer alone, not of all at once",
    "agreement": "share of the images of which both models predict the same class",
    "logit_change": "norm of the logits' difference over that of the float32 logits, less their mean over classes; "
    "mean over images",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class QuantizationSensitivity:
    """One row for each of `layers`, the last one with all of them in eight bits; `whole`: accuracy in float32."""

    layers: list[str]
    whole: float
    quantized: Tensor
    """Accuracies, (l,)."""
    interval: Tensor
    """The ends of the 95 % interval of `lost`, (2, l)."""
    agreement: Tensor
    logit_change: Tensor
    num_images: int

    @property
    def lost(self) -> Tensor:
        return self.whole - self.quantized

    def most_sensitive(self, count: int) -> list[str]:
        """The layers whose quantisation changes the logits most, for `keep` of `for_inference`."""
        order = self.logit_change[:-1].argsort(descending=True)
        return [self.layers[place] for place in order[:count].tolist()]

    def table(self) -> str:
        """Markdown, a row for each layer."""
        header = ("in eight bits", "accuracy", "points lost (95 % interval)", "same class", "change of the logits")
        rows = [
            (
                name,
                f"{quantized:.2%}",
                f"{100 * lost:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})",
                f"{same:.2%}",
                f"{change:.2%}",
            )
            for name, quantized, lost, low, high, same, change in zip(
                self.layers,
                self.quantized.tolist(),
                self.lost.tolist(),
                *self.interval.tolist(),
                self.agreement.tolist(),
                self.logit_change.tolist(),
                strict=True,
            )
        ]
        return markdown_table(header, rows)

    def plot(self) -> Figure:
        """Draw the change of the logits and the points lost against the block, in a colour for each kind of layer."""
        from vit.figures import plot_quantization_sensitivity

        *values, interval = (each[..., :-1] for each in (self.logit_change, self.lost, self.interval))
        return plot_quantization_sensitivity(self.layers[:-1], *values, interval=interval)

    def numbers(self) -> dict[str, Any]:
        return {
            "layers": self.layers,
            "whole": self.whole,
            "quantized": self.quantized.tolist(),
            "lost": self.lost.tolist(),
            "interval": self.interval.tolist(),
            "agreement": self.agreement.tolist(),
            "logit_change": self.logit_change.tolist(),
            "num_images": self.num_images,
            "conventions": CONVENTIONS,
        }


@check_arguments
def quantization_sensitivity(
    model: Model,
    logits: Callable[[nn.Module], Tensor],
    labels: Tensor,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> QuantizationSensitivity:
    """Quantise every linear layer of the blocks alone, and at last all of them, and compare with float32.

    `logits(model)` gives the logits (n, classes) of the same images at every call; `labels` int64 (n,). `progress` is
    given the number of passes over the images done and of all, which is two more than there are layers. The
    model stays as it is. ValueError for models and processors without eight-bit products, as in `for_inference`.
    """
    check_quantizable(model)
    layers = quantizable_layers(model)
    total = len(layers) + 2
    contestants: list[Sequence[str]] = [*([each for each in layers if each != name] for name in layers), ()]
    with torch.inference_mode():
        whole = _checked(logits(for_inference(model)), labels)
        hits = whole.argmax(dim=1) == labels
        rows = []
        for done, keep in enumerate(contestants, 1):
            if progress is not None:
                progress(done, total)
            rows.append(_compare(whole, _checked(logits(for_inference(model, "int8", keep=keep)), labels), labels))
        if progress is not None:
            progress(total, total)
    only_whole, only_quantized, agreement, change = np.array(rows).T
    num = np.full_like(only_whole, len(labels))
    accuracy = float(hits.double().mean())
    return QuantizationSensitivity(
        layers=[*layers, ALL],
        whole=accuracy,
        quantized=torch.from_numpy(accuracy - (only_whole - only_quantized) / num),
        interval=torch.from_numpy(np.stack(paired_share_interval(only_whole, only_quantized, num))),
        agreement=torch.from_numpy(agreement),
        logit_change=torch.from_numpy(change),
        num_images=len(labels),
    )


def _compare(whole: Tensor, quantized: Tensor, labels: Tensor) -> tuple[float, float, float, float]:
    """Images that only one of both predicts rightly, the share of equal predictions, and the change of the logits."""
    ours, theirs = whole.argmax(dim=1), quantized.argmax(dim=1)
    centred, other = (each.double() - each.double().mean(dim=1, keepdim=True) for each in (whole, quantized))
    change = (other - centred).norm(dim=1) / centred.norm(dim=1).clamp(min=1e-30)
    right, other_right = ours == labels, theirs == labels
    only_whole, only_quantized = (right & ~other_right).sum(), (other_right & ~right).sum()
    same = (ours == theirs).double().mean()
    return float(only_whole), float(only_quantized), float(same), float(change.mean())


def _checked(logits: Tensor, labels: Tensor) -> Tensor:
    fits = logits.dim() == 2 and logits.shape[0] == len(labels) > 0
    check(fits, "logits(model)", tuple(logits.shape), f"it must be (n, classes) for the {len(labels)} labels")
    return logits.float()
