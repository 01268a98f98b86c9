"""Trained models as files for other programs, with the proof that they answer as the model does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports

if TYPE_CHECKING:
    from vit.deployment.errors import Unfaithful as Unfaithful
    from vit.deployment.export import Exported as Exported
    from vit.deployment.export import Trial as Trial
    from vit.deployment.export import export_classifier as export_classifier
    from vit.deployment.proof import Decision as Decision
    from vit.deployment.repository import write_repository as write_repository
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
