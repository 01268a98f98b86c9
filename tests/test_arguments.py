"""Arguments and settings of another type than their annotation: one line that says what is wrong and what is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vit.config import ModelConfig, Preprocessing, ResNetConfig, ViTConfig
from vit.config.arguments import check_arguments, check_type, check_types
from vit.hub import create_model


@check_arguments
def draw(
    model: nn.Module, images: Tensor | Iterable[Tensor], *, size: tuple[int, int] | None = None, most: int = 5
) -> tuple[object, ...]:
    """Draw."""
    return model, images, size, most


def test_what_fits_reaches_the_function_untouched() -> None:
    model, images = nn.Identity(), iter([torch.zeros(1)])
    assert draw(model, images, size=[3, 4]) == (model, images, [3, 4], 5)  # type: ignore[arg-type]
    assert next(images).shape == (1,)  # the check took nothing from the iterator
    assert (draw.__name__, draw.__doc__) == ("draw", "Draw.")


def test_an_unknown_name_stays_pythons_own_error() -> None:
    with pytest.raises(TypeError, match=r"draw\(\) got an unexpected keyword argument 'sizes'"):
        draw(nn.Identity(), [], sizes=3)  # type: ignore[call-arg]


@dataclass
class Opened:
    model: nn.Module


@pytest.mark.parametrize(
    ("hint", "value", "said"),
    [
        (int, True, "x: True is not valid: it must be a whole number"),
        (int, 2.0, "x: 2.0 is not valid: it must be a whole number"),
        (int, np.int64(3), r"it must be a whole number; give its \.tolist\(\)"),
        (float, "1", "x: '1' is not valid: it must be a number"),
        (bool, 1, "x: 1 is not valid: it must be true or false"),
        (str | None, 3, "x: 3 is not valid: it must be text$"),
        (Literal["a", "b"], "c", "x: 'c' is not valid: it must be one of 'a', 'b'"),
        (tuple[int, int] | int, (1, 2, 3), r"x: \(1, 2, 3\) is not valid: .* a list of 2 whole numbers or a whole"),
        (Sequence[str], "cat", "x: 'cat' is not valid: it must be a list of texts"),
        (Sequence[float], np.ones(2), r"a list of numbers; give its \.tolist\(\)"),
        (Tensor, np.zeros((9, 9)), "x: ndarray is not valid: it must be a Tensor"),
        (Tensor | Iterable[Tensor], 3, "x: 3 is not valid: it must be a Tensor or an iterable of Tensors"),
        (Callable[[], float], 3, "x: 3 is not valid: it must be a function"),
    ],
)
def test_what_does_not_fit_is_one_line(hint: Any, value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        check_type("x", value, hint)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (float, 1),
        (tuple[int, int], [1, 2]),
        (tuple[str, ...], ()),
        (Sequence[float], (1, 2.5)),
        (Iterable[Tensor], "any"),  # what it yields is looked at by whoever reads it
        (Callable[[], float], len),
        (int | None, None),
        (type[nn.Module], nn.Linear),
        (Any, 3),
    ],
)
def test_what_fits(hint: Any, value: object) -> None:
    check_type("x", value, hint)


def test_what_holds_the_right_thing_is_pointed_at() -> None:
    with pytest.raises(ValueError, match=r"^model: .* it must be a Module; give its \.model$"):
        draw(Opened(nn.Identity()), [])  # type: ignore[arg-type]


def test_iterators_are_not_opened() -> None:
    def images() -> Iterator[Tensor]:
        raise AssertionError("it was opened")
        yield

    draw(nn.Identity(), images())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ViTConfig(pooling="banana"), "model.pooling: 'banana' is not valid: it must be one of 'cls', 'gap'"),
        (lambda: ViTConfig(init="banana"), "model.init: 'banana' .* 'xavier', 'normal'"),
        (lambda: ResNetConfig(depth=101), "model.depth: 101 is not valid: it must be one of 18, 34, 50"),
        (lambda: ModelConfig(name="vit", pretrained=True), "model.pretrained: True is not valid: it must be text"),
        (lambda: Preprocessing(image_size=32), "data.image_size: 32 is not valid: it must be a list of 2 whole"),
        (lambda: Preprocessing(image_size=(0, 32)), r"data.image_size: \(0, 32\) is not valid: it must be above 0"),
        (lambda: Preprocessing(image_size=(8, 8), mean=0.5), "data.mean: 0.5 is not valid: it must be a list of 3"),
        (lambda: Preprocessing(image_size=(8, 8), interpolation="lanczos"), "data.interpolation: 'lanczos' is not"),
    ],
)
def test_settings_made_in_python_are_checked(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_lists_become_tuples_in_settings() -> None:
    made = Preprocessing(image_size=[8, 8], mean=[0, 0, 0])  # type: ignore[arg-type]
    assert made == Preprocessing(image_size=(8, 8), mean=(0, 0, 0))
    check_types("data", made)


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    labels = np.array([0, 1, 2])
    assert create_model("vit", depth=1, num_classes=labels.max() + 1).config.num_classes == 3
    assert create_model("vit", depth=1, image_size=torch.tensor([8, 12])).config.image_size == (8, 12)
