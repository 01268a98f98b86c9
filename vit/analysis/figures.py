"""The figures of `vit analyze` by name."""

from __future__ import annotations

from vit.analysis import attention_figures as attention
from vit.analysis import model_figures as inside
from vit.analysis import token_figures as tokens
from vit.analysis.analysis_figure import Draw

FIGURES: dict[str, Draw] = {
    "attention_distance": attention.attention_distance,
    "attention_distance_sorted": attention.attention_distance_sorted,
    "position_similarity": inside.position_similarity,
    "patch_filters": inside.filters,
    "attention_overlays": attention.attention_overlays,
    "attention_heads": attention.attention_heads,
    "patch_components": tokens.patch_components,
    "patch_similarity": tokens.patch_similarity,
    "token_norms": tokens.token_norms,
    "attention_entropy": attention.attention_entropy,
    "layer_similarity": inside.layer_similarity,
    "receptive_field": inside.receptive_field,
    "residual_streams": inside.streams,
    "layer_probe": inside.layer_probe,
    "head_ablation": inside.head_ablation,
}
"""In the order of the page."""
RUN_FIGURES = ("attention_distance", "position_similarity", "patch_filters", "attention_overlays")
"""Drawn at the end of training."""
WITH_ANOTHER = ("attention_distance_sorted", "layer_similarity")
"""Those that draw a second model beside the first."""
