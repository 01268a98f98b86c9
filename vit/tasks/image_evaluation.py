"""The part of `vit eval` that all tasks on images share: its warnings and notes."""

from __future__ import annotations

from vit.config import DataConfig
from vit.data.file_source import notes_of
from vit.data.images import Split
from vit.engine import Accelerator
from vit.evaluation.seen_images import OpenTable, seen_images, warnings_of
from vit.evaluation.transfer_evaluation import FeatureEvaluation, TransferData, warnings_of_copies
from vit.hub import OpenedModel


def warnings_and_notes(
    opened: OpenedModel,
    data: DataConfig | None,
    test: Split,
    accelerator: Accelerator,
    *,
    features: tuple[TransferData, FeatureEvaluation] | None = None,
    open_table: OpenTable | None = None,
) -> dict[str, list[str]]:
    """`warnings` and `notes` of an evaluation, for its metrics and its file.

    They are about test images that the run was trained on (`data` and `open_table` as in `seen_images`), about those
    that the frozen `features` learn from, and images that could not be read; and what the source says of its files.
    Images are compared by the main process alone.
    """
    seen = seen_images(opened, data, test, open_table) if accelerator.is_main_process else []
    warnings = warnings_of(seen)
    if features is not None:
        images, evaluated = features
        warnings += [*warnings_of_copies(images), *evaluated.warnings()]
    return {"warnings": warnings, "notes": notes_of(test.source)}
