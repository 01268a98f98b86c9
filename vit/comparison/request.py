"""The request that every comparison starts from: models, images, resampling; and the facts of its images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vit.comparison.confounders import confounders
from vit.comparison.leaks import row_of
from vit.comparison.metrics import Resampling
from vit.config import DataConfig, check
from vit.config.rules import check_seed
from vit.data.identity import sizes_digest
from vit.data.images import Split, fingerprint
from vit.evaluation.cost import count_parameters, multiply_adds
from vit.evaluation.seen_images import SeenImages
from vit.hub import OpenedModel, open_models, source_kind

MIN_RESAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class ComparisonRequest:
    """At least two models, the images, and the options that comparisons of predictions and of features share."""

    models: Sequence[str]
    data: DataConfig
    output_dir: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open_model`, each given to the models on which it has an effect."""
    leaky: bool = False
    """Also compare models that were trained on test images."""
    device: str = "auto"
    precision: str = "auto"
    resampling: Resampling = field(default_factory=lambda: Resampling(MIN_RESAMPLES))

    def __post_init__(self) -> None:
        if len(self.models) < 2:
            raise ValueError(
                f"MODEL: give at least two models to compare, not {' '.join(map(str, self.models)) or 'none'} alone"
            )
        resamples = self.resampling.num_resamples
        check(resamples >= MIN_RESAMPLES, "--resamples", resamples, f"it must be at least {MIN_RESAMPLES}")
        check_seed("--seed", self.resampling.seed)

    def check_models(self) -> None:
        """ValueError for a source of models that is none: a misspelled one is reported before any data is opened."""
        for source in self.models:
            source_kind(source)

    def open_models(self, **options: Any) -> list[OpenedModel]:
        """The models in order, opened with the request's options and these; random weights are drawn with its seed."""
        is_random = self.options.get("random_weights") or "architecture" in map(source_kind, self.models)
        seed = {"seed": self.resampling.seed} if is_random else {}
        return open_models(self.models, **{**options, **self.options, **seed})


def data_facts(data: DataConfig, test: Split) -> dict[str, Any]:
    """Where the test images are from, how many they are, their fingerprint and a digest of their sizes."""
    return {
        "name": data.name,
        "root": data.root,
        "images": len(test),
        "classes": len(test.source.class_names),
        "fingerprint": fingerprint(test),
        "sizes": sizes_digest(test),
    }


def model_facts(model: OpenedModel, seen: Sequence[SeenImages]) -> dict[str, Any]:
    """A model's costs, and its column in the table of confounders with the test images that it has `seen`."""
    return {
        "params": count_parameters(model.model),
        "gmacs": multiply_adds(model.model, model.preprocessing.image_size) / 1e9,  # 10⁹ for one image
        "provenance": confounders(model) | row_of(model, seen),
    }
