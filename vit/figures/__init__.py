"""Figures: arrays in, a matplotlib `Figure` out, in one style. The only package that imports matplotlib.

Each `plot_…` is imported when it is first asked for, so that the package itself costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports

if TYPE_CHECKING:
    from vit.figures.accuracy_over_time import plot_accuracy_over_time as plot_accuracy_over_time
    from vit.figures.agreement import plot_agreement as plot_agreement
    from vit.figures.alignment import plot_alignment as plot_alignment
    from vit.figures.attention_map import plot_attention_map as plot_attention_map
    from vit.figures.attention_maps import plot_attention_overlays as plot_attention_overlays
    from vit.figures.attention_maps import plot_head_maps as plot_head_maps
    from vit.figures.average_precision import plot_average_precision as plot_average_precision
    from vit.figures.average_precision import plot_compared_precision as plot_compared_precision
    from vit.figures.bleu_by_length import plot_bleu_by_length as plot_bleu_by_length
    from vit.figures.calibration import plot_calibration as plot_calibration
    from vit.figures.confusion_matrix import plot_confusion_matrix as plot_confusion_matrix
    from vit.figures.contact_sheet import plot_contact_sheet as plot_contact_sheet
    from vit.figures.corruption_accuracy import plot_corruption_accuracy as plot_corruption_accuracy
    from vit.figures.data_size import plot_data_size as plot_data_size
    from vit.figures.head_ablation import plot_head_ablation as plot_head_ablation
    from vit.figures.heads_by_depth import HeadValues as HeadValues
    from vit.figures.heads_by_depth import plot_heads_by_depth as plot_heads_by_depth
    from vit.figures.heads_by_depth import plot_sorted_heads as plot_sorted_heads
    from vit.figures.intervals import Estimate as Estimate
    from vit.figures.intervals import plot_interval_panels as plot_interval_panels
    from vit.figures.intervals import plot_intervals as plot_intervals
    from vit.figures.kernel_regression import plot_errors as plot_errors
    from vit.figures.kernel_regression import plot_estimates as plot_estimates
    from vit.figures.kernel_regression import plot_kernels as plot_kernels
    from vit.figures.kernel_regression import plot_weight_maps as plot_weight_maps
    from vit.figures.kernel_regression import plot_wiggles as plot_wiggles
    from vit.figures.layer_probe import plot_layer_probe as plot_layer_probe
    from vit.figures.learning_curves import plot_learning_curves as plot_learning_curves
    from vit.figures.patch_filters import plot_patch_filters as plot_patch_filters
    from vit.figures.patch_maps import plot_patch_components as plot_patch_components
    from vit.figures.patch_maps import plot_patch_similarity as plot_patch_similarity
    from vit.figures.position_similarity import plot_position_similarity as plot_position_similarity
    from vit.figures.quantization_sensitivity import plot_quantization_sensitivity as plot_quantization_sensitivity
    from vit.figures.receptive_field import plot_receptive_field as plot_receptive_field
    from vit.figures.reconstructions import plot_reconstructions as plot_reconstructions
    from vit.figures.reliability import plot_reliability as plot_reliability
    from vit.figures.representation_similarity import plot_representation_similarity as plot_representation_similarity
    from vit.figures.residual_streams import plot_residual_streams as plot_residual_streams
    from vit.figures.schedule import plot_schedule as plot_schedule
    from vit.figures.score_scaling import plot_score_scaling as plot_score_scaling
    from vit.figures.style import save_figure as save_figure
    from vit.figures.text_heads import plot_text_heads as plot_text_heads
    from vit.figures.token_norms import plot_token_norms as plot_token_norms
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
