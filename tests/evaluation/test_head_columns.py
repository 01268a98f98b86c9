"""Matching heads to the data's classes, and heads of other classes."""

from __future__ import annotations

import pytest
from torch import nn
from torchvision.models import ResNet18_Weights

from vit.config import Preprocessing
from vit.evaluation.class_maps import imagenet_wnids
from vit.evaluation.head_columns import head_columns, random_head_size
from vit.hub import OpenedModel
from vit.libraries import RANDOM, Provenance


def headed(num_classes: int, names: list[str] | None = None, *, weights: str = "timm") -> OpenedModel:
    return OpenedModel(
        name="a",
        source="timm:a",
        model=nn.Identity(),
        provenance=Provenance(weights),
        stated_preprocessing=Preprocessing(image_size=(8, 8)),
        class_names=names or [],
        num_classes=num_classes,
    )


def test_a_head_of_the_datas_classes() -> None:
    assert head_columns(headed(2, ["ant", "bee"]), ["ant", "bee"]) == [0, 1]
    assert head_columns(headed(2, weights=RANDOM), ["ant", "bee"]) == [0, 1]


def test_a_head_is_read_by_the_names_of_its_classes() -> None:
    assert head_columns(headed(3, ["cat", "bee", "ant"]), ["ant", "bee"]) == [2, 1]
    backwards = list(reversed(imagenet_wnids()))
    assert head_columns(headed(1000, backwards), ["n01440764", "n01443537"]) == [999, 998]


def test_a_head_of_imagenet_on_a_subset() -> None:
    """tench is 0 and goldfish 1 of the thousand."""
    words = ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    assert head_columns(headed(1000, words), ["n01443537"]) == [1]
    assert head_columns(headed(1000, [f"LABEL_{n}" for n in range(1000)]), ["n01443537"]) == [1]
    with pytest.raises(ValueError, match="in its order"):
        head_columns(headed(1000, words[::-1]), ["n01443537"])
    some = ["n01443537", "n01440764"]
    assert head_columns(headed(1000), some) == [1, 0]
    assert random_head_size(some) == 1000
    assert random_head_size(["ant", "bee"]) == 2


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (headed(0), "it has no head; `vit eval --transfer` evaluates its features"),
        (headed(2), "no class names; if its 2 classes are the data's, .* give --class_names ant bee$"),
        (headed(7), "its 7 classes are not the data's 2, nor ImageNet's thousand"),
        (headed(3, ["ant", "bee", "ant"]), "two of its classes are named 'ant', as one of the data's is"),
        (headed(2, ["bee", "cat"]), "its 2 classes are not the data's 2, .* .the data's 'ant' is none of them"),
        (headed(1000, [f"thing {n}" for n in range(1000)]), "nor ImageNet's thousand in its order"),
        (headed(1000), "the data's are not among them .the first is 'ant'.; folders named by wnid"),
    ],
)
def test_a_head_of_other_classes_is_refused(head: OpenedModel, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        head_columns(head, ["ant", "bee"])


def test_what_to_type_for_a_head_without_names() -> None:
    """Quoted as a shell reads it; and `vit compare` is told of itself."""
    with pytest.raises(ValueError, match=r"--class_names 'red ant' bee$"):
        head_columns(headed(2), ["red ant", "bee"])
    many = [f"thing{n}" for n in range(30)]
    with pytest.raises(ValueError, match=r"--class_names thing0 thing1 .* thing19 … \(all 30\)$"):
        head_columns(headed(30), many)
    with pytest.raises(ValueError, match="`vit compare --transfer` evaluates"):
        head_columns(headed(0), ["ant"], command="vit compare")
