"""`vit doctor`: what each common mistake of preparing images costs a model, on the user's own images.

The right preprocessing is the one that came with the weights. Every mistake is made alone, on the same images, and its
answers are held against the right ones. This room does not know how the model was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from vit.config import DataConfig, Preprocessing, check
from vit.data.folders import open_unlabelled
from vit.data.images import Split, open_test
from vit.data.loading import EvalLoader
from vit.data.splits import stratified
from vit.engine import make_accelerator
from vit.evaluation.class_maps import NUM_CLASSES
from vit.evaluation.comparison.contestants import Contestant, check_sources, load_contestants
from vit.evaluation.comparison.heads import head_columns, random_head_size
from vit.evaluation.comparison.images import resolve_data
from vit.evaluation.comparison.libraries import Head
from vit.evaluation.evaluate import check_each_once, collect

Channels = tuple[float, float, float]
HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_USUAL_CROP = 0.875
CONVENTIONS = {
    "top1": "of the data's classes alone, where the head has more",
    "agreement": "part of the images whose likeliest class is the one under the right preprocessing, of all the head's",
    "logit_change": "mean over images and classes of |logit - logit under the right preprocessing|",
    "relative_change": "logit_change over the standard deviation of the right logits",
}


def unchanged(images: Tensor) -> Tensor:
    return images


def _reversed_channels(images: Tensor) -> Tensor:
    return images.flip(1)


def _half_the_pixels(images: Tensor) -> Tensor:
    small = interpolate(images, scale_factor=0.5, mode="bilinear", antialias=True)
    return interpolate(small, size=images.shape[-2:], mode="bilinear")


@dataclass(frozen=True)
class Mistake:
    name: str
    preprocessing: Preprocessing
    change: Callable[[Tensor], Tensor] = unchanged
    """What is done to the normalised images."""


def mistakes_for(right: Preprocessing) -> list[Mistake]:
    """All that differ from what is right for the model."""
    mean, std = right.mean, right.std
    undivided = replace(right, mean=_parts(mean), std=_parts(std))
    backwards = replace(right, mean=mean[::-1], std=std[::-1])
    candidates = [
        Mistake("mean and std 0.5", replace(right, mean=HALF, std=HALF)),
        Mistake("ImageNet's mean and std", replace(right, mean=IMAGENET_MEAN, std=IMAGENET_STD)),
        Mistake("mean and std left out", replace(right, mean=(0.0,) * 3, std=(1.0,) * 3)),
        Mistake("pixels of 0 to 255, not divided", undivided),
        Mistake("blue, green, red", backwards, _reversed_channels),
        *(Mistake(f"{name} filter", replace(right, interpolation=name)) for name in ("bilinear", "bicubic", "nearest")),
        Mistake(
            "no antialiasing" if right.antialias else "antialiasing", replace(right, antialias=not right.antialias)
        ),
        Mistake("no centre crop", replace(right, crop_fraction=1.0)),
        Mistake(f"cropped to {_USUAL_CROP:.1%}", replace(right, crop_fraction=_USUAL_CROP)),
        Mistake("cropped to one half", replace(right, crop_fraction=0.5)),
        Mistake("aspect kept" if right.squash else "squashed to a square", replace(right, squash=not right.squash)),
        Mistake("half the size, enlarged", right, _half_the_pixels),
    ]
    return [each for each in candidates if each.preprocessing != right or each.change is not unchanged]


def _parts(levels: Channels) -> Channels:
    """A 255th of each: (p / 255 - m / 255) / (s / 255) = (p - m) / s."""
    red, green, blue = (value / 255 for value in levels)
    return red, green, blue


@dataclass(frozen=True)
class Symptom:
    """What a mistake does to the answers (`CONVENTIONS`)."""

    mistake: str
    agreement: float
    logit_change: float
    relative_change: float
    top1: float | None
    """None: the images have no labels that the model's classes could be held against."""


@dataclass(frozen=True)
class Diagnosis:
    model: str
    right: Preprocessing
    num_images: int
    top1: float | None
    symptoms: list[Symptom]
    """Those that change most first."""
    note: str = ""
    """Why there is no accuracy."""

    def facts(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self) | {"conventions": CONVENTIONS}

    def table(self) -> str:
        """Lines to print."""
        size = "×".join(str(side) for side in self.right.image_size)
        kind = "squashed" if self.right.squash else f"crop {self.right.crop_fraction:g}"
        lines = [
            f"{self.model} on {self.num_images} images; right: {size}, {kind}, {self.right.interpolation}"
            f"{'' if self.right.antialias else ' without antialiasing'}, mean {self.right.mean}, std {self.right.std}",
            "",
            f"{'mistake':34}{'top-1':>9}{'change':>9}{'same answer':>13}{'logit change':>14}{'relative':>10}",
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


def diagnose(
    model: nn.Module,
    right: Preprocessing,
    split: Split,
    data: DataConfig,
    *,
    device: torch.device,
    columns: Sequence[int] | None = None,
) -> tuple[float | None, list[Symptom]]:
    """Top-1 under the right preprocessing and every mistake's symptom, those that change most first.

    `columns[k]`: the place of the data's class k in the head; None: there are no labels to be held against.
    """
    model = model.to(device)
    labels, expected = _answers(model, Mistake("", right), split, data, device)
    spread = float(expected.std())
    symptoms = []
    for mistake in mistakes_for(right):
        _, found = _answers(model, mistake, split, data, device)
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


def _answers(
    model: nn.Module, mistake: Mistake, split: Split, data: DataConfig, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Labels (n,) and logits (n, k)."""
    loader = EvalLoader(split, mistake.preprocessing, replace(data, cache_gib=0.0))
    indices, labels, logits = collect(model, lambda images: model(mistake.change(images)), loader, device=device)
    check_each_once(indices, split.indices, loader.num_broken)
    return labels, logits


def _top1(logits: Tensor, labels: Tensor, columns: Sequence[int] | None) -> float | None:
    if columns is None:
        return None
    return float((logits[:, list(columns)].argmax(dim=1) == labels).float().mean())


# ------------------------------------------------------------------ the command


@dataclass(frozen=True, kw_only=True)
class DoctorRequest:
    """Which model, on which images."""

    model: str
    data: str | None = None
    """A data set's name, a folder of class folders as for training, or a folder of images; None: the run's own data."""
    overrides: Sequence[str] = ()
    num_images: int = 256
    select: str = "best"
    random_weights: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        check(self.num_images > 0, "--images", self.num_images, "it must be above 0")


def examine(request: DoctorRequest) -> Diagnosis:
    """Open model and images, and make every mistake. ValueError where one of them cannot be had."""
    check_sources([request.model])
    split, data, is_labelled = _open(request)
    names = split.source.class_names
    head = Head(random_head_size(names) if is_labelled else NUM_CLASSES) if request.random_weights else None
    (contestant,) = load_contestants([request.model], select=request.select, random_head=head)
    columns, note = _columns(contestant, names) if is_labelled else (None, "the images have no labels")
    device = make_accelerator(request.device, "fp32").device
    top1, symptoms = diagnose(contestant.model, contestant.preprocessing, split, data, device=device, columns=columns)
    return Diagnosis(contestant.name, contestant.preprocessing, len(split), top1, symptoms, note)


def _columns(contestant: Contestant, names: list[str]) -> tuple[list[int] | None, str]:
    """Where the classes do not go together, the reason: the mistakes can be judged without labels."""
    try:
        return head_columns(contestant, names), ""
    except ValueError as error:
        return None, f"no accuracy: {error}"


def _open(request: DoctorRequest) -> tuple[Split, DataConfig, bool]:
    """Some images, how they are read, and whether they have labels."""
    if request.data is not None and len(source := open_unlabelled(Path(request.data))):
        if request.overrides:
            raise ValueError(f"{request.overrides[0]}: it has no effect on a folder of images without classes")
        config = DataConfig(name="imagefolder", root=request.data)
        return Split(source, torch.arange(len(source))[: request.num_images]), config, False
    config = resolve_data([request.model], request.data, request.overrides)
    split = open_test(config)
    if request.num_images >= len(split):
        return split, config, True
    chosen = stratified(split.labels, request.num_images / len(split), seed=0, stream="doctor")
    return Split(split.source, split.indices[chosen]), config, True
