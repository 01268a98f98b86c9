"""Vision Transformers to train, trust and look inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit.hub import create_model
    from vit.models import list_models
    from vit.models.inference import for_inference

__all__ = ["create_model", "for_inference", "list_models"]


def __getattr__(name: str) -> Any:
    """Import torch only when a model is asked for: a mistyped setting is answered at once."""
    if name == "create_model":
        from vit.hub import create_model

        return create_model
    if name == "list_models":
        from vit.models import list_models

        return list_models
    if name == "for_inference":
        from vit.models.inference import for_inference

        return for_inference
    raise AttributeError(f"module 'vit' has no attribute {name!r}")
