"""Whether an earlier evaluation, which `vit eval` would write over, is the same as the one that is stored now."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def is_repeated(
    before: Mapping[str, Any], record: Mapping[str, Any], *, equal: Sequence[str], close: Sequence[str]
) -> bool:
    """Whether two records have the same entries, those of `close` but for rounding, which precision and batches change.

    The step is among `equal`: weights of another one may give numbers as close as that, and other predictions.
    KeyError for an entry that the earlier record lacks.
    """
    return all(before[name] == record[name] for name in equal) and all(
        math.isclose(before[name], record[name], rel_tol=1e-3, abs_tol=1e-4) for name in close
    )
