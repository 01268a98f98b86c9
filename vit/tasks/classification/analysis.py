"""Figures of what is inside a trained classifier, on its validation images, when its training ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vit.analysis.figures import RUN_FIGURES
from vit.analysis.report import draw_analysis
from vit.analysis.targets import AnalysisTarget, from_split
from vit.config import RunConfig
from vit.data.images import open_training
from vit.hub import open_model
from vit.models import VisionTransformer
from vit.tasks.classification.config import ClassificationRun

NUM_IMAGES = 64


def draw_inside(run: Path, config: RunConfig) -> dict[str, Any] | None:
    """Distance, positions, filters and overlays in the run's `figures`, and `analysis.html`; None: it is no ViT."""
    assert isinstance(config, ClassificationRun)
    loaded = open_model(run)
    if not isinstance(loaded.model, VisionTransformer):
        return None
    _, validation = open_training(config.data)
    skips, place = config.data.on_broken_image == "skip", f"{config.data.name}, held out"
    target = AnalysisTarget(
        name=run.name,
        model=loaded.model,
        preprocessing=loaded.preprocessing,
        images=from_split(validation, loaded.preprocessing, NUM_IMAGES, place, skip_broken=skips),
        class_names=tuple(loaded.class_names),
    )
    return draw_analysis(target, run, RUN_FIGURES)
