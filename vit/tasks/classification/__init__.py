"""One label for each image."""

from __future__ import annotations

from vit.config import RunConfig, check
from vit.tasks.classification.config import ClassificationRun


def require_classification(config: RunConfig, field_name: str, value: str) -> ClassificationRun:
    """`config` itself. ValueError, about the `value` given for `field_name`, where it is of another task."""
    rule = f"its task is {config.task}; an image classifier is needed"
    check(isinstance(config, ClassificationRun), field_name, value, rule)
    assert isinstance(config, ClassificationRun)
    return config
