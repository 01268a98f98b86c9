"""`vit doctor`: the effect of common preprocessing mistakes on a model's predictions for the user's own images.

The correct preprocessing is the one stored with the weights. Each mistake is made alone, on the same images, and the
logits are compared with the correct ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from vit.config import DataConfig, Preprocessing, check_arguments
from vit.data.folders import open_unlabelled
from vit.data.images import Split, open_test
from vit.data.loading import EvalLoader
from vit.data.splits import balanced_subset
from vit.engine import make_accelerator
from vit.evaluation.evaluate import check_each_once, collect_outputs
from vit.evaluation.head_columns import UnmatchedClasses, head_columns
from vit.hub import OpenedModel

Channels = tuple[float, float, float]
HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_COMMON_CROP = 0.875
CONVENTIONS = {
    "top1": "among the data's classes, if the head has more",
    "agreement": "fraction of the images whose most likely class is that under the right preprocessing",
    "logit_change": "mean over images and classes of |logit - logit under the right preprocessing|",
    "relative_change": "logit_change over the standard deviation of the right logits",
}


def unchanged(images: Tensor) -> Tensor:
    return images


def _halve_resolution(images: Tensor) -> Tensor:
    small = interpolate(images, scale_factor=0.5, mode="bilinear", antialias=True)
    return interpolate(small, size=images.shape[-2:], mode="bilinear")


@dataclass(frozen=True)
class Mistake:
    name: str
    preprocessing: Preprocessing
    change: Callable[[Tensor], Tensor] = unchanged
    """Applied to the normalised images."""


def mistakes_for(right: Preprocessing) -> list[Mistake]:
    """List the mistakes that change something for this model."""
    mean, std = right.mean, right.std
    order: Literal["rgb", "bgr"] = "bgr" if right.channel_order == "rgb" else "rgb"
    reversed_channels = replace(right, mean=mean[::-1], std=std[::-1], channel_order=order)
    candidates = [
        Mistake("mean and std 0.5", replace(right, mean=HALF, std=HALF)),
        Mistake("ImageNet's mean and std", replace(right, mean=IMAGENET_MEAN, std=IMAGENET_STD)),
        Mistake("mean and std left out", replace(right, mean=(0.0,) * 3, std=(1.0,) * 3)),
        Mistake("pixels of 0 to 255, not divided", replace(right, mean=_undivided(mean), std=_undivided(std))),
        Mistake("blue, green, red" if order == "bgr" else "red, green, blue", reversed_channels),
        *(Mistake(f"{name} filter", replace(right, interpolation=name)) for name in ("bilinear", "bicubic", "nearest")),
        Mistake(
            "no antialiasing" if right.antialias else "antialiasing", replace(right, antialias=not right.antialias)
        ),
        Mistake("no centre crop", replace(right, crop_fraction=1.0)),
        Mistake(f"cropped to {_COMMON_CROP:.1%}", replace(right, crop_fraction=_COMMON_CROP)),
        Mistake("cropped to one half", replace(right, crop_fraction=0.5)),
        Mistake("aspect kept" if right.squash else "squashed to a square", replace(right, squash=not right.squash)),
        Mistake("half the size, enlarged", right, _halve_resolution),
    ]
    return [each for each in candidates if each.preprocessing != right or each.change is not unchanged]


def _undivided(levels: Channels) -> Channels:
    """Divide by 255, which undoes the division of pixels: (p / 255 - m / 255) / (s / 255) = (p - m) / s."""
    red, green, blue = (value / 255 for value in levels)
    return red, green, blue


@dataclass(frozen=True)
class Symptom:
    """The effect of a mistake on the predictions (`CONVENTIONS`)."""

    mistake: str
    agreement: float
    logit_change: float
    relative_change: float
    top1: float | None
    """None: the images have no labels among the model's classes."""


@dataclass(frozen=True)
class Diagnosis:
    """Changes of a model's logits and accuracy by each mistake of preprocessing."""

    model: str
    right: Preprocessing
    num_images: int
    top1: float | None
    symptoms: list[Symptom]
    """Sorted by descending change of the logits."""
    note: str = ""
    """The reason why there is no accuracy."""

    def facts(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON."""
        return asdict(self) | {"conventions": CONVENTIONS}

    def table(self) -> str:
        """Format as lines to print."""
        size = "×".join(str(side) for side in self.right.image_size)
        kind = "squashed" if self.right.squash else f"crop {self.right.crop_fraction:g}"
        lines = [
            f"{self.model} on {self.num_images} images; right: {size}, {kind}, {self.right.interpolation}"
            f"{'' if self.right.antialias else ' without antialiasing'}, mean {self.right.mean}, std {self.right.std}",
            "",
            f"{'mistake':34}{'top-1':>9}{'change':>9}{'same class':>13}{'logit change':>14}{'relative':>10}",
            f"{'none':34}{_percent(self.top1)}{'':>9}{1:>13.1%}{0:>14.3f}{0:>10.1%}",
        ]
        lines += [self._line(symptom) for symptom in self.symptoms]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    def _line(self, symptom: Symptom) -> str:
        known = symptom.top1 is not None and self.top1 is not None
        change = f"{100 * ((symptom.top1 or 0) - (self.top1 or 0)):+.1f}" if known else ""
        return (
            f"{symptom.mistake:34}{_percent(symptom.top1)}{change:>9}{symptom.agreement:>13.1%}"
            f"{symptom.logit_change:>14.3f}{symptom.relative_change:>10.1%}"
        )


def _percent(value: float | None) -> str:
    return f"{'–':>9}" if value is None else f"{value:>9.1%}"


# ------------------------------------------------------------------ measurement


@dataclass(frozen=True)
class DoctorImages:
    """The images to make mistakes on, and the settings of their loader."""

    split: Split
    data: DataConfig
    is_labelled: bool


@check_arguments
def open_images(images: DataConfig | Sequence[str], num_images: int = 256) -> DoctorImages:
    """Open about `num_images` test images of a data set, classes balanced, or the first ones of files and folders."""
    if isinstance(images, DataConfig):
        split = balanced_subset(open_test(images), num_images, stream="doctor")
        return DoctorImages(split, images, True)
    source = open_unlabelled(images)
    return DoctorImages(Split(source, torch.arange(len(source))[:num_images]), DataConfig(name="imagefolder"), False)


def measure_mistakes(
    model: nn.Module,
    right: Preprocessing,
    images: DoctorImages,
    *,
    device: torch.device,
    columns: Sequence[int] | None = None,
) -> tuple[float | None, list[Symptom]]:
    """Measure top-1 under the right preprocessing, and every mistake's symptom, by descending change of the logits.

    `columns[k]`: the index of the data's class k in the head; None: there are no labels to compare with.
    """
    model = model.to(device)
    labels, expected = _predict(model, Mistake("", right), images, device)
    spread = float(expected.std())
    symptoms = []
    for mistake in mistakes_for(right):
        _, found = _predict(model, mistake, images, device)
        change = float((found - expected).abs().mean())
        symptoms.append(
            Symptom(
                mistake=mistake.name,
                agreement=float((found.argmax(dim=1) == expected.argmax(dim=1)).float().mean()),
                logit_change=change,
                relative_change=change / spread if spread > 0 else 0.0,
                top1=_top1(found, labels, columns),
            )
        )
    return _top1(expected, labels, columns), sorted(symptoms, key=lambda symptom: -symptom.logit_change)


def _predict(model: nn.Module, mistake: Mistake, images: DoctorImages, device: torch.device) -> tuple[Tensor, Tensor]:
    """Compute labels (n,) and logits (n, k) under a mistake."""
    loader = EvalLoader(images.split, mistake.preprocessing, replace(images.data, cache_gib=0.0))
    indices, labels, logits = collect_outputs(
        model, lambda pixels: model(mistake.change(pixels)), loader, device=device
    )
    check_each_once(indices, images.split.indices, loader.num_broken)
    return labels, logits


def _top1(logits: Tensor, labels: Tensor, columns: Sequence[int] | None) -> float | None:
    if columns is None:
        return None
    return float((logits[:, list(columns)].argmax(dim=1) == labels).float().mean())


@check_arguments
def diagnose_preprocessing(opened: OpenedModel, images: DoctorImages, device: str = "auto") -> Diagnosis:
    """Make every mistake on the images. Without labels that the head knows there is no accuracy.

    ValueError for a multi-label model.
    """
    opened.check_single_label()
    columns, note = None, "the images have no labels"
    if images.is_labelled:
        try:
            columns, note = head_columns(opened, images.split.source.class_names), ""
        except UnmatchedClasses as error:
            note = f"no accuracy: {error}"
    accelerator = make_accelerator(device, "fp32")
    top1, symptoms = measure_mistakes(
        opened.model, opened.preprocessing, images, device=accelerator.device, columns=columns
    )
    return Diagnosis(opened.name, opened.preprocessing, len(images.split), top1, symptoms, note)
