"""Opening models: from a name, a path or a module to an `OpenedModel`. Joins models, libraries and runs.

Data sets are left to higher packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports

if TYPE_CHECKING:
    from vit.hub.identity import model_digest as model_digest
    from vit.hub.opened import OpenedModel as OpenedModel
    from vit.hub.opening import check_options as check_options
    from vit.hub.opening import open_model as open_model
    from vit.hub.opening import open_models as open_models
    from vit.hub.pretrained import create_model as create_model
    from vit.hub.pretrained import load_model as load_model
    from vit.hub.run_checkpoint import check_kind as check_kind
    from vit.hub.run_checkpoint import read_run as read_run
    from vit.hub.run_history import provenance_of_run as provenance_of_run
    from vit.hub.sources import short_names as short_names
    from vit.hub.sources import source_kind as source_kind
    from vit.hub.text_encoder import LoadedTextEncoder as LoadedTextEncoder
    from vit.hub.text_encoder import load_text_encoder as load_text_encoder
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
