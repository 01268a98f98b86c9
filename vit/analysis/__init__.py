"""Looking inside a model: attention, positions, representations. It knows nothing of training."""

from __future__ import annotations

from vit.analysis.attention_distance import AttentionDistance, mean_attention_distance

__all__ = ["AttentionDistance", "mean_attention_distance"]
