"""Keys of a model's stored predictions: its weights, images, preprocessing, precision and device."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vit.data.identity import paths_of
from vit.data.images import Split, fingerprint
from vit.engine import Accelerator
from vit.hub import OpenedModel


def file_stem(model: OpenedModel) -> str:
    """Build the common part of the model's file names from its source, weights and image size, so that models share a
    folder.
    """
    source = re.sub(r"[^\w.-]+", "_", model.source.rstrip("/").rpartition("/")[2])
    height, width = model.preprocessing.image_size
    return f"{source}_{model.identity}_{height}x{width}"


def cache_key(model: OpenedModel, split: Split, accelerator: Accelerator) -> dict[str, Any]:
    """Collect everything that the model's predictions on the images depend on, as JSON stores it."""
    return {
        "model": model.source,
        "weights": model.identity,
        "images": fingerprint(split),
        "last_change": last_modified(split),
        "preprocessing": json.loads(json.dumps(asdict(model.preprocessing))),
        "precision": str(accelerator.mixed_precision),
        "device": accelerator.device.type,
    }


def last_modified(split: Split) -> float:
    """Return when an image file was last written or put there, in seconds; 0 for images that are not files.

    The change time counts too: a copy that keeps the time of its original is newer than that. A file that is not there,
    as behind a dangling link, is a broken image, and has no time.
    """
    return max(map(_last_change, paths_of(split)), default=0.0)


def _last_change(path: Path) -> float:
    try:
        found = path.stat()
    except OSError:
        return 0.0
    return max(found.st_mtime, found.st_ctime)
