"""Matching a head's outputs to the data's classes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from vit.evaluation.class_maps import NUM_CLASSES, imagenet_columns, imagenet_wnids
from vit.hub import OpenedModel

_PLACEHOLDER = re.compile(r"LABEL_\d+|\d+")
"""Placeholder names: those of transformers for unnamed classes, and bare numbers."""


_MOST_TYPED = 20


class UnmatchedClasses(ValueError):
    """The data's classes are not among those of the model's head."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}; {advice}" if advice else reason)
        self.reason = reason


def random_head_size(class_names: Sequence[str]) -> int:
    """Choose the size of a random head: ImageNet's thousand classes if they include the data's, else the data's."""
    return len(class_names) if imagenet_columns(class_names) is None else NUM_CLASSES


def head_columns(model: OpenedModel, class_names: Sequence[str], *, command: str = "vit eval") -> list[int]:
    """Map each of the data's classes to its index in the model's head; `command` evaluates features too.

    A head with class names has to contain the data's, in any order, or ImageNet's thousand as words; one without names
    has to be ImageNet's, in its order. UnmatchedClasses for any other, and for a multi-label model.
    """
    try:
        model.check_single_label()
    except ValueError as error:
        raise UnmatchedClasses(str(error)) from None
    if model.num_classes == 0:
        advice = f"`{command} --transfer` evaluates its features"
        raise UnmatchedClasses(f"model: {model.source!r} is not valid: it has no head", advice)
    if model.provenance.is_random and model.num_classes == len(class_names):
        return list(range(len(class_names)))
    own = model.class_names
    if set(class_names) <= set(own):
        if twice := next((name for name in class_names if own.count(name) > 1), None):
            rule = f"two of its classes are named {twice!r}, as one of the data's is; give class_names in its order"
            raise UnmatchedClasses(f"model: {model.source!r} is not valid here: {rule}")
        return [own.index(name) for name in class_names]
    rule = f"its {model.num_classes} classes are not the data's {len(class_names)}, nor ImageNet's thousand"
    if own:
        rule += f" in its order (the data's {next(name for name in class_names if name not in own)!r} is none of them)"
    elif model.num_classes == len(class_names):
        rule = f"it has no class names; if its {model.num_classes} classes are the data's, in the same order, give "
        rule += _given(class_names)
    else:
        rule += "; if it has them without names, give class_names in its order"
    if not _is_imagenet_head(model):
        raise UnmatchedClasses(f"model: {model.source!r} is not valid: {rule}")
    columns = imagenet_columns(class_names)
    if columns is None:
        rule = (
            f"its classes are ImageNet's, and the data's are not among them (the first is {class_names[0]!r}); "
            "folders named by wnid, like n01440764, would be"
        )
        raise UnmatchedClasses(f"model: {model.source!r} is not valid here: {rule}")
    return list(columns)


def _given(class_names: Sequence[str]) -> str:
    """The option that names a head's classes, as it is typed; of many classes the first."""
    typed = shlex.join(class_names[:_MOST_TYPED])
    more = "" if len(class_names) <= _MOST_TYPED else f" … (all {len(class_names)})"
    return f"--class_names {typed}{more}"


def _is_imagenet_head(model: OpenedModel) -> bool:
    """Recognise ImageNet's classes: a thousand without names, or 90 % of the first words as in timm's descriptions."""
    own = model.class_names
    if model.num_classes != NUM_CLASSES or not own or all(_PLACEHOLDER.fullmatch(name) for name in own):
        return model.num_classes == NUM_CLASSES and model.checkpoint is None
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    expected = (info.index_to_description(number) for number in range(NUM_CLASSES))
    firsts = ([words.split(",")[0].strip().casefold() for words in pair] for pair in zip(own, expected, strict=True))
    return sum(name == reference for name, reference in firsts) >= 0.9 * NUM_CLASSES


def readable_class_names(class_names: Sequence[str]) -> list[str]:
    """Put the meaning before each wnid, `tarantula (n01774750)`; other names stay as they are."""
    if imagenet_columns(class_names) is None or not set(class_names) <= set(imagenet_wnids()):
        return list(class_names)
    from timm.data import ImageNetInfo

    info = ImageNetInfo("imagenet-1k")
    return [f"{info.label_name_to_description(name).split(',')[0]} ({name})" for name in class_names]
