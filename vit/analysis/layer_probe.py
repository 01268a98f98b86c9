"""Linear probes on the tokens after each block (Alain and Bengio 2016; Raghu et al. 2021, figure 13).

The probe itself is `vit.evaluation.probe`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit.analysis.model_structure import forward_hooks, residual_blocks
from vit.analysis.tokens import block_patches, token_layout
from vit.analysis.unsupported import Unsupported
from vit.config import check_arguments
from vit.data.loading import EvalLoader
from vit.evaluation.evaluate import Autocast, check_seen_once, collect_outputs
from vit.evaluation.probe import CONVENTION, linear_probe, probe_fault
from vit.evaluation.statistics import Interval, wilson_interval

if TYPE_CHECKING:
    from vit.figures.style import Figure

CONVENTIONS = {
    "accuracy": f"{CONVENTION}; on the test images",
    "class": "reads the class token after the block",
    "patches": "reads the mean of the patches, or of a ResNet's map, after the block",
    "intervals": "95 %, Wilson, over the test images; of one probe, whose training images stay the same",
}
READINGS = {"class": "class token", "patches": "mean of the patches"}
"""The legend's label for each reading."""


@dataclass(frozen=True, kw_only=True)
class LayerProbe:
    """`accuracy[reading]`: one a block; `reading` is `patches`, and `class` where there is a class token."""

    accuracy: dict[str, list[float]]
    layers: list[str]
    num_train: int
    num_test: int

    @property
    def intervals(self) -> dict[str, list[Interval]]:
        """The ends of the 95 % interval of each accuracy over the test images."""
        return {
            reading: [wilson_interval(round(value * self.num_test), self.num_test) for value in values]
            for reading, values in self.accuracy.items()
        }

    def plot(self, title: str = "") -> Figure:
        """Draw a line for each reading, a point with its interval for each block."""
        from vit.figures import plot_layer_probe

        return plot_layer_probe(
            {READINGS.get(name, name): values for name, values in self.accuracy.items()},
            title,
            intervals={READINGS.get(name, name): ends for name, ends in self.intervals.items()},
        )

    def numbers(self) -> dict[str, Any]:
        return {**vars(self), "intervals": self.intervals, "conventions": CONVENTIONS}


@check_arguments
def probe_layers(
    model: nn.Module,
    train: EvalLoader,
    test: EvalLoader,
    *,
    device: torch.device,
    autocast: Autocast = nullcontext,
    progress: Callable[[str], None] | None = None,
) -> LayerProbe:
    """Accuracy of a linear probe after every block; one pass over each split, all blocks' features at once.

    `progress` is given the name of each block before its probe is fitted. Unsupported where too few training images of
    a class could be read.
    """
    (features, labels), (test_features, test_labels) = (
        _features(model, loader, device, autocast) for loader in (train, test)
    )
    if (fault := probe_fault(labels)) is not None:  # images that cannot be read may have been left out
        raise Unsupported(f"--images: {fault}")
    accuracy: dict[str, list[float]] = {}
    for (layer, reading), train_part in features.items():
        if progress is not None:
            progress(f"{layer} ({reading})")
        probe = linear_probe(train_part, labels, test_features[layer, reading])
        hits = probe.predicted == test_labels.numpy()
        accuracy.setdefault(reading, []).append(float(hits.mean()))
    return LayerProbe(
        accuracy=accuracy, layers=list(residual_blocks(model)), num_train=len(labels), num_test=len(test_labels)
    )


def _features(
    model: nn.Module, loader: EvalLoader, device: torch.device, autocast: Autocast
) -> tuple[dict[tuple[str, str], Tensor], Tensor]:
    """Features (n, c) of every block and reading, and the labels (n,)."""
    widths: dict[tuple[str, str], int] = {}

    def compute(images: Tensor) -> Tensor:
        found = read_layers(model, images)
        widths.update({key: part.shape[1] for key, part in found.items()})
        return torch.cat(list(found.values()), dim=1)

    indices, labels, joined = collect_outputs(model, compute, loader, device=device, autocast=autocast)
    check_seen_once(indices, loader, device=device)
    return dict(zip(widths, joined.split(list(widths.values()), dim=1), strict=True)), labels


def read_layers(model: nn.Module, images: Tensor) -> dict[tuple[str, str], Tensor]:
    """The inputs of the probes after every block, for normalised images `b 3 H W`: `b c` each."""
    found: dict[tuple[str, str], Tensor] = {}
    size = (images.shape[2], images.shape[3])

    def read(name: str, output: Tensor) -> None:
        if output.dim() == 3 and token_layout(model, size, output.shape[1]).has_class_token:
            found[name, "class"] = output[:, 0]
        found[name, "patches"] = block_patches(model, output, size).mean(dim=(1, 2))

    with forward_hooks(residual_blocks(model), read):
        model(images)
    return found
