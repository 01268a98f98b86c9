"""`vit doctor`: the effect of common preprocessing mistakes on a model's predictions for the user's own images.

The correct preprocessing is the one stored with the weights. Each mistake is made alone, on the same images, and the
logits are compared with the correct ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate

from vit.config import DataConfig, Preprocessing, check_arguments
from vit.data.images import Split, open_test
from vit.data.loading import EvalLoader
from vit.data.splits import balanced_subset
from vit.data.unlabelled import open_unlabelled
from vit.engine import make_accelerator
from vit.evaluation.evaluate import check_each_once, collect_outputs
from vit.evaluation.head_columns import UnmatchedClasses, head_columns
from vit.evaluation.multilabel import average_precisions, label_sets, mean_average_precision, probabilities
from vit.hub import OpenedModel
from vit.wording import counted

Channels = tuple[float, float, float]
HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_COMMON_CROP = 0.875
CONVENTIONS = {
    "top1": "among the data's classes, if the head has more",
    "map": "of a multi-label model: mean over classes of average precision, not interpolated; classes that none of the "
    "images has are left out",
    "agreement": "fraction of the images whose most likely class is that under the right preprocessing; of a "
    "multi-label model: whose set of labels is, at the model's thresholds",
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
    """None: the images have no labels among the model's classes, or the model is multi-label."""
    map: float | None = None
    """A multi-label model's; None: the images have no such labels."""


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
    """Why there is no accuracy, and how many images could not be read."""
    map: float | None = None
    multilabel: bool = False
    """Label sets and mean average precision take the place of classes and accuracy."""

    def facts(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON."""
        return asdict(self) | {"conventions": CONVENTIONS}

    def table(self) -> str:
        """Format as lines to print."""
        size = "×".join(str(side) for side in self.right.image_size)
        kind = "squashed" if self.right.squash else f"crop {self.right.crop_fraction:g}"
        score, predicted = ("mAP", "same labels") if self.multilabel else ("top-1", "same class")
        lines = [
            f"{self.model} on {counted(self.num_images, 'image')}; right: {size}, {kind}, {self.right.interpolation}"
            f"{'' if self.right.antialias else ' without antialiasing'}, mean {self.right.mean}, std {self.right.std}",
            "",
            f"{'mistake':34}{score:>9}{'change':>9}{predicted:>13}{'logit change':>14}{'relative':>10}",
            f"{'none':34}{_percent(self.map if self.multilabel else self.top1)}{'':>9}{1:>13.1%}{0:>14.3f}{0:>10.1%}",
        ]
        lines += [self._line(symptom) for symptom in self.symptoms]
        return "\n".join([*lines, *(["", self.note] if self.note else [])])

    def _line(self, symptom: Symptom) -> str:
        right, wrong = (self.map, symptom.map) if self.multilabel else (self.top1, symptom.top1)
        change = "" if right is None or wrong is None else f"{100 * (wrong - right):+.1f}"
        return (
            f"{symptom.mistake:34}{_percent(wrong)}{change:>9}{symptom.agreement:>13.1%}"
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
        return choose_images(open_test(images), images, num_images)
    source = open_unlabelled(images)
    data = DataConfig(name="imagefolder", on_broken_image="skip")
    return DoctorImages(Split(source, torch.arange(len(source))[:num_images]), data, False)


def choose_images(split: Split, data: DataConfig, num_images: int = 256) -> DoctorImages:
    """About `num_images` of labelled images, classes balanced where an image has one."""
    return DoctorImages(balanced_subset(split, num_images, stream="doctor"), data, True)


def measure_mistakes(
    model: nn.Module,
    right: Preprocessing,
    images: DoctorImages,
    *,
    device: torch.device,
    columns: Sequence[int] | None = None,
    thresholds: Sequence[float] | None = None,
) -> tuple[int, float | None, list[Symptom]]:
    """Count the images that can be read, and measure the score under the right preprocessing, and every mistake's
    symptom, by descending change of the logits.

    `columns[k]`: the index of the data's class k in the head; None: there are no labels to compare with. The score is
    top-1, or, of a multi-label model, whose `thresholds` (k,) are given, mean average precision. ValueError for a model
    whose logits under the right preprocessing are not finite, which nothing could change.
    """
    model = model.to(device)
    score = _top1 if thresholds is None else _map
    labels, expected = _predict(model, Mistake("", right), images, device)
    if broken := int((~expected.isfinite().all(dim=1)).sum()):
        raise ValueError(f"{broken} of {counted(len(expected), 'sample')} have logits that are not finite")
    spread, decided = float(expected.std()), _decisions(expected, thresholds)
    symptoms = []
    for mistake in mistakes_for(right):
        _, found = _predict(model, mistake, images, device)
        change = float((found - expected).abs().mean())
        value = score(found, labels, columns)
        symptoms.append(
            Symptom(
                mistake=mistake.name,
                agreement=float((_decisions(found, thresholds) == decided).all(axis=1).mean()),
                logit_change=change,
                relative_change=change / spread if spread > 0 else 0.0,
                top1=value if thresholds is None else None,
                map=None if thresholds is None else value,
            )
        )
    return len(expected), score(expected, labels, columns), sorted(symptoms, key=lambda symptom: -symptom.logit_change)


def _decisions(logits: Tensor, thresholds: Sequence[float] | None) -> NDArray[Any]:
    """The most likely class (n, 1), or which labels an image has (n, k)."""
    if thresholds is None:
        return logits.argmax(dim=1, keepdim=True).numpy()
    return label_sets(logits.numpy(), np.array(thresholds))


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


def _map(logits: Tensor, labels: Tensor, columns: Sequence[int] | None) -> float | None:
    if columns is None:
        return None
    scores = probabilities(logits[:, list(columns)].numpy())
    return mean_average_precision(average_precisions(labels.numpy(), scores))


@check_arguments
def diagnose_preprocessing(opened: OpenedModel, images: DoctorImages, device: str = "auto") -> Diagnosis:
    """Make every mistake on the images. Without labels that the head knows there is no accuracy."""
    columns, note = None, "the images have no labels"
    if images.is_labelled:
        try:
            columns, note = _label_columns(opened, images.split), ""
        except UnmatchedClasses as error:
            note = f"no {'mean average precision' if opened.multilabel else 'accuracy'}: {error}"
    accelerator = make_accelerator(device, "fp32")
    model = opened.module_on(accelerator.device)
    num_images, score, symptoms = measure_mistakes(
        model,
        opened.preprocessing,
        images,
        device=accelerator.device,
        columns=columns,
        thresholds=opened.thresholds if opened.multilabel else None,
    )
    model.to("cpu")
    if num_broken := len(images.split) - num_images:
        note = "\n".join([*filter(None, [note]), f"{counted(num_broken, 'image')} could not be read"])
    return Diagnosis(
        model=opened.name,
        right=opened.preprocessing,
        num_images=num_images,
        top1=None if opened.multilabel else score,
        symptoms=symptoms,
        note=note,
        map=score if opened.multilabel else None,
        multilabel=opened.multilabel,
    )


def _label_columns(opened: OpenedModel, split: Split) -> list[int]:
    """Map each of the data's classes to its index in the head. UnmatchedClasses where that cannot be."""
    names = split.source.class_names
    if not opened.multilabel:
        return head_columns(opened, names)
    if split.labels.dim() == 1:
        raise UnmatchedClasses(f"the images have one class each, and {opened.source!r} gives any number of labels")
    if unknown := sorted(set(names) - set(opened.class_names)):
        raise UnmatchedClasses(f"{opened.source!r} has no label {unknown[0]!r}, and the images have")
    return [opened.class_names.index(name) for name in names]
