"""Sizes beyond what any machine holds, refused before torch asks for their memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vit.config.rules import check

MOST_LAYERS = 1_000
"""As many as the deepest Transformers published (Wang et al. 2022, DeepNet)."""
MOST_CHANNELS = 2**20
"""Widths of tokens and layers."""
MOST_PIXELS = 2**15
"""Side of an image."""
MOST_SAMPLES = 10**9
"""Images, sentences or points of a data set that is made up."""
MOST_STEPS = 10**12
"""Epochs, or steps between two events."""
MOST_WORKERS = 1_024
"""Processes that decode."""


def check_most(section: str, config: Any, most: Mapping[str, int]) -> None:
    """Refuse fields above their largest value; `most`: field → that value, for each entry of a tuple. None passes."""
    for name, largest in most.items():
        value = getattr(config, name)
        entries = value if isinstance(value, tuple) else (value,)
        fits = all(entry is None or entry <= largest for entry in entries)
        check(fits, f"{section}.{name}", value, f"it must be at most {largest:,}")
