"""Fields of a Vision Transformer that its tensors do not tell, and those in which two models differ."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from vit.config import ViTConfig

UNTOLD = (
    *("num_heads", "pooling", "pool_prefix", "pool_heads", "class_token", "positions", "feedforward", "norm_eps"),
    *(item.name for item in fields(ViTConfig) if item.name.startswith("rope_")),
)
"""Fields of a Vision Transformer that its tensors may not tell: two may differ in them whose tensors have the same
names and shapes, or are written under the same in another library's file.
"""


def difference_untold(one: ViTConfig, other: ViTConfig) -> dict[str, tuple[Any, Any]]:
    """The fields of `UNTOLD` in which two differ, by name, with both values."""
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in UNTOLD}
    if one.pool_heads != other.pool_heads:  # None stands for `num_heads`
        pairs["pool_heads"] = (one.pool_heads or one.num_heads, other.pool_heads or other.num_heads)
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
