"""Models that were trained on the images that they are compared on: refused, unless it is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vit.config import DataConfig
from vit.data.images import Split
from vit.evaluation.seen_images import OpenTable, SeenImages, seen_images
from vit.hub import OpenedModel

SEEN_ROW = "test images seen in training"
"""The row of the table of confounders."""


def check_unseen(
    models: Sequence[OpenedModel],
    data: DataConfig | None,
    test: Split,
    leaky: bool,
    open_table: OpenTable | None = None,
) -> list[SeenImages]:
    """Test images that the runs behind the models have seen; `data` and `open_table` as in `seen_images`.

    ValueError, naming the runs, where they were trained on some, unless `leaky`.
    """
    seen = [each for model in models for each in seen_images(model, data, test, open_table)]
    trained = {each.run: each.training for each in seen if each.training}
    if trained and not leaky:
        said = ", ".join(f"{count:,} are training images of {run}" for run, count in trained.items())
        raise ValueError(
            f"compare: of {len(test):,} test images {said}; give --data of other images; `vit compare --leaky` "
            "compares nevertheless, with a warning"
        )
    return seen


def row_of(model: OpenedModel, seen: Sequence[SeenImages]) -> dict[str, Any]:
    """The model's cell in the table of confounders."""
    parts = [each.short() for each in seen if each.model == model.name]
    return {SEEN_ROW: "; ".join(dict.fromkeys(parts)) or ("none" if model.provenance.is_random else "not stated")}
