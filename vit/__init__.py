"""Vision Transformers to train, trust and look inside."""

from vit.hub import create_model
from vit.models import list_models

__all__ = ["create_model", "list_models"]
