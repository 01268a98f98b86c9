"""Looking inside a model: attention, positions, representations. Every result draws itself: `result.plot()`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports

if TYPE_CHECKING:
    from vit.analysis.attention_distance import AttentionDistance as AttentionDistance
    from vit.analysis.attention_distance import distance_from_profile as distance_from_profile
    from vit.analysis.attention_distance import mean_attention_distance as mean_attention_distance
    from vit.analysis.attention_distance import uniform_distance as uniform_distance
    from vit.analysis.capture import AttentionLayer as AttentionLayer
    from vit.analysis.capture import capture_attention as capture_attention
    from vit.analysis.filters import PatchFilters as PatchFilters
    from vit.analysis.filters import patch_filters as patch_filters
    from vit.analysis.head_ablation import HeadAblation as HeadAblation
    from vit.analysis.head_ablation import ablate_heads as ablate_heads
    from vit.analysis.layer_probe import LayerProbe as LayerProbe
    from vit.analysis.layer_probe import probe_layers as probe_layers
    from vit.analysis.maps import AttentionMaps as AttentionMaps
    from vit.analysis.maps import Relevance as Relevance
    from vit.analysis.maps import attention_maps as attention_maps
    from vit.analysis.maps import relevance as relevance
    from vit.analysis.maps import rollout as rollout
    from vit.analysis.norms import TokenNorms as TokenNorms
    from vit.analysis.norms import token_norms as token_norms
    from vit.analysis.patch_features import PatchComponents as PatchComponents
    from vit.analysis.patch_features import PatchSimilarity as PatchSimilarity
    from vit.analysis.patch_features import patch_components as patch_components
    from vit.analysis.patch_features import patch_similarity as patch_similarity
    from vit.analysis.positions import PositionSimilarity as PositionSimilarity
    from vit.analysis.positions import PositionTable as PositionTable
    from vit.analysis.positions import position_similarity as position_similarity
    from vit.analysis.positions import position_vectors as position_vectors
    from vit.analysis.positions import similarity_of as similarity_of
    from vit.analysis.profile import AttentionProfile as AttentionProfile
    from vit.analysis.profile import attention_profile as attention_profile
    from vit.analysis.quantization import QuantizationSensitivity as QuantizationSensitivity
    from vit.analysis.quantization import quantization_sensitivity as quantization_sensitivity
    from vit.analysis.receptive_field import ReceptiveField as ReceptiveField
    from vit.analysis.receptive_field import effective_receptive_field as effective_receptive_field
    from vit.analysis.report import draw_analysis as draw_analysis
    from vit.analysis.representations import RepresentationSimilarity as RepresentationSimilarity
    from vit.analysis.representations import representation_similarity as representation_similarity
    from vit.analysis.streams import ResidualStreams as ResidualStreams
    from vit.analysis.streams import residual_streams as residual_streams
    from vit.analysis.targets import AnalysisTarget as AnalysisTarget
    from vit.analysis.targets import open_target as open_target
    from vit.analysis.targets import read_images as read_images
    from vit.analysis.unsupported import Unsupported as Unsupported
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
