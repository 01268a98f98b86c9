"""Where a model comes from, and what besides its architecture differs between models: the confounders.

Words in, words out; knows neither tensors nor images. What a tag of timm's says (`augreg_in21k_ft_in1k`: recipe,
pre-training data, data it was fine-tuned on) is read after the convention of timm's model cards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vit.config import ClassificationRun, Preprocessing

RANDOM = "RANDOM"
"""How the weights of a model that was never trained are named, wherever it is named."""

_DATA = {
    "in1k": "ImageNet-1k",
    "in12k": "ImageNet-12k",
    "in21k": "ImageNet-21k",
    "in22k": "ImageNet-22k",
    "ig1b": "Instagram (1 B)",
    "yfcc100m": "YFCC-100M",
    "yfcc15m": "YFCC-15M",
    "cc12m": "CC-12M",
    "webli": "WebLI",
    "lvd142m": "LVD-142M",
    "lvd1689m": "LVD-1689M",
    "sat493m": "SAT-493M",
    "laion400m": "LAION-400M",
    "laion2b": "LAION-2B",
    "datacompxl": "DataComp-XL",
    "datacomp1b": "DataComp-1B",
    "dfn2b": "DFN-2B",
    "dfn5b": "DFN-5B",
    "merged2b": "Merged-2B",
    "openai": "OpenAI's CLIP set (400 M)",
}
_DISTILLED = ("dist", "distilled", "teacher")


@dataclass(frozen=True)
class Provenance:
    """What a reader must know of a model before its accuracy is compared with another's."""

    weights: str
    """`run, step 567, average`, `timm`, `torchvision`, or `RANDOM`."""
    data: tuple[str, ...]
    """What it was trained on, in order; empty: nothing."""
    recipe: str
    distillation: str
    """`none`, or who the teacher was."""
    preprocessing: Preprocessing

    @property
    def is_random(self) -> bool:
        return self.weights == RANDOM

    def facts(self) -> dict[str, str]:
        """The rows of the table of confounders."""
        height, width = self.preprocessing.image_size
        return {
            "weights": self.weights,
            "trained on": " → ".join(self.data) or "nothing",
            "recipe": self.recipe,
            "distillation": self.distillation,
            "image size": f"{height}×{width}",
            "preprocessing": describe(self.preprocessing),
        }


def describe(preprocessing: Preprocessing) -> str:
    """Crop, filter and normalisation in a few words."""
    filter = preprocessing.interpolation + ("" if preprocessing.antialias else " without antialiasing")
    numbers = ("/".join(f"{value:.3g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    mean, std = numbers
    cut = "squashed" if preprocessing.squash else f"centre {preprocessing.crop_fraction:.3g}"
    return f"{cut}, {filter}, mean {mean}, std {std}"


def from_tag(architecture: str, tag: str) -> tuple[tuple[str, ...], str, str]:
    """(data in order, recipe, distillation) that a timm name says: `deit_…`, `fb_dist_in1k`."""
    words = tag.split("_")
    data = tuple(_DATA[word] for word in words if word in _DATA)
    recipe = "_".join(word for word in words if word not in (*_DATA, "ft", *_DISTILLED)) or "not said"
    taught = "distilled" in architecture or any(word in _DISTILLED for word in words)
    return data, recipe, "from a teacher" if taught else "none said"


def from_run(config: ClassificationRun) -> tuple[tuple[str, ...], str, str]:
    """(data in order, recipe, distillation) of a run of ours; of what it was initialised with, its name."""
    data: tuple[str, ...] = (config.data.name,)
    pretrained = config.model.pretrained
    if pretrained and pretrained.startswith("timm:"):
        architecture, _, tag = pretrained.removeprefix("timm:").partition(".")
        data = (*(from_tag(architecture, tag)[0] or (pretrained,)), *data)
    elif pretrained:
        data = (pretrained, *data)
    part = "" if config.data.fraction == 1 else f" of {config.data.fraction:.3g} of the images"
    recipe = f"{config.optim.name}, lr {config.optim.lr:g}, {config.train.epochs} epochs{part}"
    return data, recipe, config.distill.teacher or "none"


# ------------------------------------------------------------------ what is not like for like


def warnings(names: Sequence[str], models: Sequence[Provenance]) -> list[str]:
    """One sentence for each confounder that differs between the models; none: like for like, as far as is known."""
    found = [_random(names, models)]
    for sentence, read in _RULES:
        values = [read(model) for model in models]
        trained = [value for value, model in zip(values, models, strict=True) if sentence.always or not model.is_random]
        if len(set(trained)) > 1:
            pairs = zip(names, values, models, strict=True)
            said = [f"{name}: {value}" for name, value, model in pairs if sentence.always or not model.is_random]
            found.append(f"{sentence.what} ({'; '.join(said)}). {sentence.why}")
    return [line for line in found if line]


def _random(names: Sequence[str], models: Sequence[Provenance]) -> str:
    never = [name for name, model in zip(names, models, strict=True) if model.is_random]
    if not never:
        return ""
    return f"Never trained: {', '.join(never)}. Their accuracies say nothing about the architectures."


@dataclass(frozen=True)
class _Sentence:
    what: str
    why: str
    always: bool = False
    """Also of a model that was never trained."""


_RULES: tuple[tuple[_Sentence, Callable[[Provenance], str]], ...] = (
    (
        _Sentence("Trained on different data", "More or other data can decide the result whatever the architecture."),
        lambda model: model.facts()["trained on"],
    ),
    (
        _Sentence("Different image sizes", "More pixels give more accuracy, and cost more.", always=True),
        lambda model: model.facts()["image size"],
    ),
    (
        _Sentence("Different distillation", "A teacher brings what it learned from its own data."),
        lambda model: model.distillation.removesuffix(" said"),
    ),
    (
        _Sentence("Different recipes", "A ResNet gains several points from a newer recipe alone."),
        lambda model: model.recipe,
    ),
    (
        _Sentence("Different preprocessing", "Each model sees its own crop of the image, as it was trained to."),
        lambda model: describe(model.preprocessing).split(", mean")[0],
    ),
)
