"""Which of a head's outputs are the data's classes."""

from __future__ import annotations

from collections.abc import Sequence

from vit.config import check
from vit.evaluation.class_maps import NUM_CLASSES, imagenet_columns, wnids
from vit.evaluation.comparison.contestants import Contestant


def random_head_size(class_names: Sequence[str]) -> int:
    """Classes of a head of random weights: ImageNet's thousand where the data's are among them, else the data's."""
    return len(class_names) if imagenet_columns(class_names) is None else NUM_CLASSES


def head_columns(contestant: Contestant, class_names: Sequence[str]) -> list[int]:
    """`columns[k]`: the place of the data's class k in the model's head.

    The head has the data's classes in the data's order, or ImageNet's thousand with the data's among them. ValueError
    for any other.
    """
    if contestant.class_names == list(class_names) or _is_made_for(contestant, class_names):
        return list(range(len(class_names)))
    rule = f"its {contestant.num_classes} classes are not the data's {len(class_names)}, nor ImageNet's thousand"
    check(contestant.run is None and contestant.num_classes == NUM_CLASSES, "model", contestant.source, rule)
    columns = imagenet_columns(class_names)
    if columns is None:
        rule = (
            f"its classes are ImageNet's, and the data's are not among them (the first is {class_names[0]!r}); "
            "folders named by wnid, like n01440764, would be"
        )
        raise ValueError(f"model: {contestant.source!r} is not valid here: {rule}")
    return list(columns)


def spoken_names(class_names: Sequence[str]) -> list[str]:
    """Names for a reader: what a wnid means before it, `tarantula (n01774750)`; other names as they are."""
    if imagenet_columns(class_names) is None or not set(class_names) <= set(wnids()):
        return list(class_names)
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return [f"{info.label_name_to_description(name).split(',')[0]} ({name})" for name in class_names]


def _is_made_for(contestant: Contestant, class_names: Sequence[str]) -> bool:
    return contestant.provenance.is_random and contestant.num_classes == len(class_names)
