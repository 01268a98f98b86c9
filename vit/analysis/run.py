"""What is drawn of a run when its training ends: a look inside the model that it chose, on its validation images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vit.analysis.drawings import OF_A_RUN
from vit.analysis.report import draw_analysis
from vit.analysis.subjects import Subject, from_split
from vit.config import ClassificationRun
from vit.data.images import open_training
from vit.evaluation.checkpoint import trained_as
from vit.hub import load_run
from vit.models import VisionTransformer
from vit.settings import run_config_from

NUM_IMAGES = 64


def draw_run(run: Path) -> dict[str, Any] | None:
    """Distance, positions, filters and overlays in the run's `figures`, and `analysis.html`; None: it is no ViT."""
    if trained_as(run) != "classification":
        return None
    loaded, state = load_run(run)
    config = run_config_from(state["config"])
    if not isinstance(config, ClassificationRun) or not isinstance(loaded.model, VisionTransformer):
        return None
    assert loaded.preprocessing is not None
    images = from_split(
        open_training(config.data)[1], loaded.preprocessing, NUM_IMAGES, f"{config.data.name}, held out"
    )
    subject = Subject(
        name=run.name,
        model=loaded.model.eval(),
        preprocessing=loaded.preprocessing,
        images=images,
        class_names=tuple(loaded.class_names or ()),
    )
    return draw_analysis(subject, run, OF_A_RUN)
