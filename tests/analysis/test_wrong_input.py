"""Images, models and options of a wrong kind: every analysis says in one line what is wrong."""

# mypy: disable-error-code="arg-type,list-item,return-value"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vit import Preprocessing, analysis, create_model, open_model

MODEL = create_model("vit", depth=2, width=24, num_heads=2, num_classes=3).eval()
IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SIZE = Preprocessing(image_size=(32, 32))
OF_IMAGES: dict[str, Callable[[Any], object]] = {
    "distance": lambda images: analysis.mean_attention_distance(MODEL, images),
    "profile": lambda images: analysis.attention_profile(MODEL, images),
    "capture": lambda images: analysis.capture_attention(MODEL, images, print),
    "maps": lambda images: analysis.attention_maps(MODEL, images),
    "relevance": lambda images: analysis.relevance(MODEL, images),
    "field": lambda images: analysis.effective_receptive_field(MODEL, [images]),
    "streams": lambda images: analysis.residual_streams(MODEL, [images]),
    "norms": lambda images: analysis.token_norms(MODEL, [images]),
    "components": lambda images: analysis.patch_components(MODEL, images),
    "likeness": lambda images: analysis.patch_similarity(MODEL, images),
    "similarity": lambda images: analysis.representation_similarity(MODEL, MODEL, [(images, images)]),
}
WRONG_IMAGES = {
    "numpy": (IMAGES.numpy(), "images: ndarray is not valid: it must be a "),
    "a list of numbers": ([[0.5]], "images: "),
    "one image": (IMAGES[0], r"images: the shape \(3, 32, 32\) .* for one image, images\[None\]"),
    "one channel": (IMAGES[:, :1], r"images: the shape \(4, 1, 32, 32\) is not valid: it must be b 3 H W"),
    "channels last": (IMAGES.movedim(1, 3), r"for channels last, images.movedim\(3, 1\)"),
    "none": (IMAGES[:0], r"images: \(0, 3, 32, 32\) is not valid: an analysis needs at least one"),
    "not a number": (IMAGES * torch.nan, "images: infinite or NaN pixels are not valid"),
    "pixels": ((IMAGES * 255).byte(), "images: torch.uint8 is not valid: they must be normalised"),
}


@pytest.mark.parametrize("kind", WRONG_IMAGES)
@pytest.mark.parametrize("name", OF_IMAGES)
def test_wrong_images(name: str, kind: str) -> None:
    images, said = WRONG_IMAGES[kind]
    with pytest.raises(ValueError, match=said) as caught:
        OF_IMAGES[name](images)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["distance", "profile", "field", "streams", "norms"])
def test_a_tensor_is_one_batch_and_no_batch_is_an_error(name: str) -> None:
    function = {
        "distance": analysis.mean_attention_distance,
        "profile": analysis.attention_profile,
        "field": analysis.effective_receptive_field,
        "streams": analysis.residual_streams,
        "norms": analysis.token_norms,
    }[name]
    assert function(MODEL, IMAGES).num_images == 4  # type: ignore[operator]
    nothing: Any
    for nothing in ([], iter(())):
        with pytest.raises(ValueError, match="images: none is not valid: an analysis needs at least one"):
            function(MODEL, nothing)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: analysis.attention_maps("vit", IMAGES), "model: 'vit' is not valid: it must be a Module"),
        (lambda: analysis.attention_maps(open_model("vit"), IMAGES), r"it must be a Module; give its \.model"),
        (lambda: analysis.patch_filters("vit"), "model: 'vit' is not valid"),
        (lambda: analysis.position_similarity("vit"), "model: 'vit' is not valid"),
        (lambda: analysis.mean_attention_distance(MODEL, 3), "images: 3 is not valid: it must be a Tensor or an iter"),
        (lambda: analysis.mean_attention_distance(MODEL, IMAGES, prefix="drop"), "prefix: 'drop' .* one of 'renormal"),
        (lambda: analysis.uniform_distance((14, 14)), r"layout: \(14, 14\) is not valid: it must be a TokenLayout"),
        (lambda: analysis.attention_maps(MODEL, IMAGES, "cls"), "query: 'cls' is not valid: it must be one of 'class'"),
        (lambda: analysis.attention_maps(MODEL, IMAGES, (1,)), r"query: \(1,\) is not valid"),
        (lambda: analysis.attention_maps(MODEL, IMAGES).plot(4), "image: 4 is not valid: there are 4, from 0 to 3"),
        (lambda: analysis.attention_maps(MODEL, IMAGES).plot(pixels=IMAGES), "pixels: .* must be uint8 b 3 H W"),
        (lambda: analysis.relevance(MODEL, IMAGES, torch.tensor([0, 1, 2])), r"classes: .* of the shape \(4,\)"),
        (lambda: analysis.relevance(MODEL, IMAGES, torch.tensor([0, 1, 2, 3])), "classes: .* from 0 to 2"),
        (lambda: analysis.relevance(MODEL, IMAGES, torch.ones(4)), "classes: .* whole numbers"),
        (lambda: analysis.relevance(MODEL, IMAGES, [0, 1, 2, 0]), "classes: .* it must be a Tensor"),
        (lambda: analysis.effective_receptive_field(MODEL, [IMAGES, IMAGES[..., :16]]), "all must be of the first"),
        (lambda: analysis.representation_similarity(MODEL, MODEL, [IMAGES]), "batches: .* the images twice"),
        (
            lambda: analysis.representation_similarity(MODEL, MODEL, [(IMAGES, IMAGES.repeat(2, 1, 1, 1))]),
            r"batches: \(4, 8\) is not valid: as many images for both models",
        ),
        (lambda: analysis.patch_filters(MODEL, -1), "count: -1 is not valid"),
        (lambda: analysis.position_similarity(MODEL, 3), "grid: 3 is not valid: it must be a list of 2 whole numbers"),
        (lambda: analysis.position_similarity(MODEL, (0, 3)), r"grid: \(0, 3\) is not valid"),
        (lambda: analysis.rollout(torch.rand(2, 3, 4, 4)), r"layers: \(3, 4, 4\) is not valid: each must be a map"),
        (lambda: analysis.rollout([np.ones((2, 3, 4, 4))]), "layers: .* it must be|each must be a map b h n n"),
        (lambda: analysis.ablate_heads(MODEL, lambda: None), r"hits\(\): None is not valid: it must be a Tensor"),
        (lambda: analysis.ablate_heads(MODEL, lambda: torch.rand(3)), r"hits\(\): \(3,\) .* it must be bool \(n,\)"),
        (lambda: analysis.read_images("photo.jpg", SIZE), "places: 'photo.jpg' is not valid: .* a list of texts"),
        (lambda: analysis.open_target(MODEL, IMAGES), "opened: VisionTransformer is not valid: it must be an OpenedM"),
    ],
)
def test_other_mistakes(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
