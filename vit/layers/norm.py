"""The norm of a Vision Transformer's tokens: LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""

from __future__ import annotations

from torch import nn

from vit.config import ViTConfig
from vit.config.vit import NormKind

NORMS: dict[NormKind, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


def build_norm(config: ViTConfig, *, present: bool = True) -> nn.Module:
    """The norm of a configuration's tokens, or nothing where it is not `present`."""
    return NORMS[config.norm](config.width, config.norm_eps) if present else nn.Identity()
