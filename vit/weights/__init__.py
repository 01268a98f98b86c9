"""Weights of other libraries under our names and back: layouts, files, the loader and its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports

if TYPE_CHECKING:
    from vit.weights.convert import Conversion as Conversion
    from vit.weights.convert import convert_model as convert_model
    from vit.weights.convert import verify_conversion as verify_conversion
    from vit.weights.files import read_tensors as read_tensors
    from vit.weights.files import write_tensors as write_tensors
    from vit.weights.loader import load_weights as load_weights
    from vit.weights.report import LoadReport as LoadReport
    from vit.weights.sources import Source as Source
    from vit.weights.sources import open_source as open_source
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
