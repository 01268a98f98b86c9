"""Which of a head's outputs are the data's classes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from vit.config import check
from vit.evaluation.class_maps import NUM_CLASSES, imagenet_columns, wnids
from vit.evaluation.comparison.contestants import Contestant

_NAMELESS = re.compile(r"LABEL_\d+|\d+")
"""What transformers calls a class that nobody named, and a bare number."""


def random_head_size(class_names: Sequence[str]) -> int:
    """Classes of a head of random weights: ImageNet's thousand where the data's are among them, else the data's."""
    return len(class_names) if imagenet_columns(class_names) is None else NUM_CLASSES


def head_columns(contestant: Contestant, class_names: Sequence[str]) -> list[int]:
    """`columns[k]`: the place of the data's class k in the model's head.

    A head that names its classes has the data's among them, in any order, or ImageNet's thousand in words; one that
    names none has ImageNet's in ImageNet's order. ValueError for any other.
    """
    if _is_made_for(contestant, class_names):
        return list(range(len(class_names)))
    own = contestant.class_names
    if set(class_names) <= set(own):
        return [own.index(name) for name in class_names]
    rule = f"its {contestant.num_classes} classes are not the data's {len(class_names)}, nor ImageNet's thousand"
    if own:
        rule += f" in its order (the data's {next(name for name in class_names if name not in own)!r} is none of them)"
    check(_has_imagenets(contestant), "model", contestant.source, rule)
    columns = imagenet_columns(class_names)
    if columns is None:
        rule = (
            f"its classes are ImageNet's, and the data's are not among them (the first is {class_names[0]!r}); "
            "folders named by wnid, like n01440764, would be"
        )
        raise ValueError(f"model: {contestant.source!r} is not valid here: {rule}")
    return list(columns)


def _has_imagenets(contestant: Contestant) -> bool:
    """A thousand classes without names, or with those of ImageNet: nine in ten begin as timm describes them."""
    own = contestant.class_names
    if contestant.num_classes != NUM_CLASSES or not own or all(_NAMELESS.fullmatch(name) for name in own):
        return contestant.num_classes == NUM_CLASSES and contestant.run is None
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    expected = (info.index_to_description(number) for number in range(NUM_CLASSES))
    firsts = ([words.split(",")[0].strip().casefold() for words in pair] for pair in zip(own, expected, strict=True))
    return sum(mine == theirs for mine, theirs in firsts) >= 0.9 * NUM_CLASSES


def spoken_names(class_names: Sequence[str]) -> list[str]:
    """Names for a reader: what a wnid means before it, `tarantula (n01774750)`; other names as they are."""
    if imagenet_columns(class_names) is None or not set(class_names) <= set(wnids()):
        return list(class_names)
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return [f"{info.label_name_to_description(name).split(',')[0]} ({name})" for name in class_names]


def _is_made_for(contestant: Contestant, class_names: Sequence[str]) -> bool:
    return contestant.provenance.is_random and contestant.num_classes == len(class_names)
