"""The classes of images without labels: of a few, returned; of a great many, written into one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit.exports import lazy_exports

if TYPE_CHECKING:
    from vit.prediction.classify import classify_images as classify_images
    from vit.prediction.contact_sheet import draw_least_certain as draw_least_certain
    from vit.prediction.predict import Predicted as Predicted
    from vit.prediction.predict import predict_to_file as predict_to_file
    from vit.prediction.rows import Row as Row
    from vit.prediction.tables import check_replaceable as check_replaceable
    from vit.prediction.tables import check_table as check_table
    from vit.prediction.tables import read_table as read_table
else:  # type checkers would take any name for one of `__getattr__`'s
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
