"""Arguments and settings of another type than their annotation: one line that says what is wrong and what is right."""

# mypy: disable-error-code="arg-type,type-var"
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typing_extensions import TypeAliasType

from vit import comparison, deployment, evaluation, for_inference, open_model, prediction, weights
from vit.attention import attend
from vit.config import ModelConfig, Preprocessing, ResNetConfig, ViTConfig
from vit.config.arguments import check_arguments, check_type, check_types
from vit.hub import create_model

Scalar = TypeVar("Scalar")
Rows = TypeAliasType("Rows", np.ndarray[Any, np.dtype[Any]], type_params=(Scalar,))
"""As NumPy 2.5 defines `NDArray`."""
Counts = TypeAliasType("Counts", Sequence[int])


@check_arguments
def draw(
    model: nn.Module, images: Tensor | Iterable[Tensor], *, size: tuple[int, int] | None = None, most: int = 5
) -> tuple[object, ...]:
    """Draw."""
    return model, images, size, most


def test_what_fits_reaches_the_function_untouched() -> None:
    model, images = nn.Identity(), iter([torch.zeros(1)])
    assert draw(model, images, size=[3, 4]) == (model, images, [3, 4], 5)
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
        (Rows[int], (1, 2), "x: .* is not valid: it must be a ndarray"),
        (Counts | None, "7", "x: '7' is not valid: it must be a list of whole numbers"),
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
        (Rows[int], np.zeros(3)),
        (Counts, [3]),
    ],
)
def test_what_fits(hint: Any, value: object) -> None:
    check_type("x", value, hint)


def test_what_holds_the_right_thing_is_pointed_at() -> None:
    with pytest.raises(ValueError, match=r"^model: .* it must be a Module; give its \.model$"):
        draw(Opened(nn.Identity()), [])


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
        (lambda: ResNetConfig(width="a"), "model.width: .a. is not valid: it must be a whole number"),
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
    made = Preprocessing(image_size=[8, 8], mean=[0, 0, 0])
    assert made == Preprocessing(image_size=(8, 8), mean=(0, 0, 0))
    check_types("data", made)


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    labels = np.array([0, 1, 2])
    assert create_model("vit", depth=1, num_classes=labels.max() + 1).config.num_classes == 3
    assert create_model("vit", depth=1, image_size=torch.tensor([8, 12])).config.image_size == (8, 12)


def test_files_may_be_named_by_text(tmp_path: Path) -> None:
    path = str(tmp_path / "tiny.safetensors")
    weights.write_tensors(path, {"a": torch.ones(2)})
    assert torch.equal(weights.read_tensors(path)["a"], torch.ones(2))


OPENED = open_model("vit", num_classes=3)
VECTORS = torch.zeros(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: weights.write_tensors("a.npz", OPENED.model), "tensors: VisionTransformer .* it must be a Mapping"),
        (lambda: weights.convert_model(OPENED, "timm"), r"model: .* give its \.model"),
        (lambda: weights.open_source(3), "source: 3 is not valid"),
        (lambda: for_inference(OPENED), r"model: .* it must be a Module; give its \.model"),
        (lambda: evaluation.count_parameters(OPENED), r"give its \.model"),
        (lambda: evaluation.multiply_adds(OPENED.model, 32), "image_size: 32 .* a list of 2 whole numbers"),
        (lambda: prediction.classify_images(OPENED, "cat.jpg"), "images: 'cat.jpg' is not valid: it must be a list"),
        (lambda: evaluation.open_images("cat.jpg"), "images: 'cat.jpg' is not valid"),
        (
            lambda: deployment.export_classifier(OPENED, "onx", "a.onnx"),
            "format: 'onx' is not valid: it must be one of",
        ),
        (lambda: evaluation.confusion_matrix([1, 2]), "it must be a Predictions"),
        (lambda: comparison.compare_models(["a", "b"]), "request: .* it must be a CompareRequest"),
        (lambda: comparison.wilson_interval(5, 3), "hits: 5 is not valid: it must be from 0 to the total, 3"),
        (lambda: comparison.wilson_interval(0, 0), "total: 0 is not valid"),
        (lambda: comparison.mcnemar(-1, 2), "only_first: -1 is not valid"),
        (lambda: comparison.holm([2.0]), "p_values: .* each must be from 0 to 1"),
        (lambda: attend(VECTORS.numpy(), VECTORS, VECTORS), "query: ndarray .* it must be a Tensor|query: array"),
        (lambda: attend(VECTORS, VECTORS, VECTORS, mask="causal"), "mask: 'causal' is not valid: it must be a Tensor"),
    ],
)
def test_public_functions_refuse_what_does_not_fit(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
