"""Attention: `attend`, its masks and scores, layers with projections, and statistics of its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports

if TYPE_CHECKING:
    from vit.attention import masks as masks
    from vit.attention import scores as scores
    from vit.attention.backends import BACKENDS as BACKENDS
    from vit.attention.cache import KeyValueCache as KeyValueCache
    from vit.attention.core import attend as attend
    from vit.attention.core import attention_weights as attention_weights
    from vit.attention.kernel_regression import NadarayaWatson as NadarayaWatson
    from vit.attention.local import attend_locally as attend_locally
    from vit.attention.multihead import MultiHeadAttention as MultiHeadAttention
    from vit.attention.multihead import SelfAttention as SelfAttention
    from vit.attention.multihead import Widths as Widths
    from vit.attention.statistics import AttentionStatistics as AttentionStatistics
    from vit.attention.statistics import attention_statistics as attention_statistics
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
