"""What each layer already knows: a linear probe on its tokens (Alain and Bengio 2016; Raghu et al. 2021, figure 13).

The probe is `vit.evaluation.transfer`'s; this room says what it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit.analysis.parts import find_blocks, has_class_token, patch_grid, watching
from vit.evaluation import transfer
from vit.evaluation.evaluate import Autocast, check_seen_once, collect

if TYPE_CHECKING:
    from vit.data.loading import EvalLoader

CONVENTIONS = {
    "accuracy": f"{transfer.CONVENTIONS['linear_probe']}; on the test images",
    "class": "reads the class token after the block",
    "patches": "reads the mean of the patches, or of a ResNet's map, after the block",
}


@dataclass(frozen=True, kw_only=True)
class LayerProbe:
    """`accuracy[reading]`: one a block; `reading` is `patches`, and `class` where there is a class token."""

    accuracy: dict[str, list[float]]
    layers: list[str]
    num_train: int
    num_test: int

    def numbers(self) -> dict[str, Any]:
        return {**vars(self), "conventions": CONVENTIONS}


def probe_layers(
    model: nn.Module,
    train: EvalLoader,
    test: EvalLoader,
    *,
    device: torch.device,
    autocast: Autocast = nullcontext,
    progress: Callable[[str], None] | None = None,
) -> LayerProbe:
    """Accuracy of a linear probe after every block; one pass over each split, all layers' features at once.

    `progress` is told each block whose probe begins.
    """
    (features, labels), (test_features, test_labels) = (
        _features(model, loader, device, autocast) for loader in (train, test)
    )
    accuracy: dict[str, list[float]] = {}
    for (layer, reading), train_part in features.items():
        if progress is not None:
            progress(f"{layer} ({reading})")
        probe = transfer.linear_probe(train_part, labels, test_features[layer, reading], test_labels)
        accuracy.setdefault(reading, []).append(probe.accuracy)
    return LayerProbe(
        accuracy=accuracy, layers=list(find_blocks(model)), num_train=len(labels), num_test=len(test_labels)
    )


def _features(
    model: nn.Module, loader: EvalLoader, device: torch.device, autocast: Autocast
) -> tuple[dict[tuple[str, str], Tensor], Tensor]:
    """Of every block and reading, (n, c), and the labels (n,)."""
    widths: dict[tuple[str, str], int] = {}

    def compute(images: Tensor) -> Tensor:
        found = read_layers(model, images)
        widths.update({key: part.shape[1] for key, part in found.items()})
        return torch.cat(list(found.values()), dim=1)

    indices, labels, joined = collect(model, compute, loader, device=device, autocast=autocast)
    check_seen_once(indices, loader, device=device)
    return dict(zip(widths, joined.split(list(widths.values()), dim=1), strict=True)), labels


def read_layers(model: nn.Module, images: Tensor) -> dict[tuple[str, str], Tensor]:
    """What a probe reads after every block of a pass over normalised images `b 3 H W`: `b c` each."""
    found: dict[tuple[str, str], Tensor] = {}
    with_class = has_class_token(model)

    def tell(name: str, output: Tensor) -> None:
        if output.dim() == 4:
            found[name, "patches"] = output.mean(dim=(2, 3))
            return
        rows, columns = patch_grid(model, (images.shape[2], images.shape[3]))
        if with_class:
            found[name, "class"] = output[:, 0]
        found[name, "patches"] = output[:, output.shape[1] - rows * columns :].mean(dim=1)

    with watching(find_blocks(model), tell):
        model(images)
    return found
