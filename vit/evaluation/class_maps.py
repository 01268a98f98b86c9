"""Mapping ImageNet's thousand classes to data of fewer classes.

A head of ImageNet-1k can be evaluated on any data whose classes are among the thousand: Imagenette, Tiny-ImageNet, a
folder of folders named by wnid. The list of wnids comes from timm.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

NUM_CLASSES = 1000
IMAGENETTE = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
"""Imagenette's classes in its order (github.com/fastai/imagenette); torchvision names them in words."""
CONVENTIONS = {
    "restricted": "only the logits of the data's classes are compared, so fewer classes make the task easier",
    "unrestricted": "all logits of the head are compared, and a prediction outside the data's classes is wrong",
}


@cache
def imagenet_wnids() -> tuple[str, ...]:
    """List the thousand wnids by class number."""
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


def imagenet_columns(class_names: Sequence[str]) -> list[int] | None:
    """Map each of the data's classes to ImageNet's number; None unless they are wnids of it or Imagenette's names."""
    numbers = {wnid: number for number, wnid in enumerate(imagenet_wnids())}
    if list(class_names) == list(IMAGENETTE.values()):
        return [numbers[wnid] for wnid in IMAGENETTE]
    if len(class_names) == 0 or not set(class_names) <= numbers.keys():
        return None
    return [numbers[name] for name in class_names]
