"""Vision Transformers to train, trust and look inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports
from vit.versions import VERSION

if TYPE_CHECKING:
    from vit.config import DataConfig as DataConfig
    from vit.config import Preprocessing as Preprocessing
    from vit.hub import OpenedModel as OpenedModel
    from vit.hub import create_model as create_model
    from vit.hub import open_model as open_model
    from vit.models import list_models as list_models
    from vit.models.inference import for_inference as for_inference
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)

__version__ = VERSION
