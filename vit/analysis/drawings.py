"""Every figure that a model is shown by, under its name."""

from __future__ import annotations

from vit.analysis import attention_drawings as attention
from vit.analysis import model_drawings as inside
from vit.analysis.picture import Draw

DRAWINGS: dict[str, Draw] = {
    "attention_distance": attention.attention_distance,
    "attention_distance_sorted": attention.attention_distance_sorted,
    "position_similarity": inside.positions,
    "patch_filters": inside.filters,
    "attention_overlays": attention.overlays,
    "attention_heads": attention.head_maps,
    "attention_entropy": attention.attention_entropy,
    "layer_similarity": inside.layers_alike,
    "receptive_field": inside.receptive_fields,
    "residual_streams": inside.streams,
    "layer_probe": inside.probes,
    "head_ablation": inside.heads_ablated,
}
"""In the order of the page."""
OF_A_RUN = ("attention_distance", "position_similarity", "patch_filters", "attention_overlays")
"""What is drawn at the end of training."""
