"""Other libraries' models, without weights: what they are made of, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torchvision.models import ResNet18_Weights

from vit.config import Preprocessing
from vit.evaluation.class_maps import wnids
from vit.evaluation.comparison.contestants import Contestant, short_names, weights_digest
from vit.evaluation.comparison.heads import head_columns, random_head_size
from vit.evaluation.comparison.libraries import Head, load_library_model
from vit.evaluation.comparison.provenance import RANDOM, Provenance


def test_timms_model_has_timms_preprocessing_and_the_datas_classes() -> None:
    found = load_library_model("timm:test_vit.r160_in1k", Head(7))
    assert found.model(torch.zeros(1, 3, 160, 160)).shape == (1, 7)
    assert found.provenance.preprocessing.image_size == (160, 160)
    assert found.provenance.preprocessing.crop_fraction == 0.95
    assert found.provenance.is_random
    assert found.provenance.data == ()


def test_random_weights_are_the_same_again_and_leave_the_generator_alone() -> None:
    before = torch.get_rng_state()
    one, again, other = (load_library_model("timm:test_vit", Head(3, seed)).model for seed in (0, 0, 1))
    assert weights_digest(one) == weights_digest(again) != weights_digest(other)
    assert torch.equal(before, torch.get_rng_state())


def test_torchvisions_model() -> None:
    found = load_library_model("torchvision:shufflenet_v2_x0_5", Head(5))
    assert found.provenance.preprocessing.image_size == (224, 224)
    assert math.floor(224 / found.provenance.preprocessing.crop_fraction) == 256
    assert found.num_classes == 5


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "timm:vit_tinny_patch16_224",
            "timm has no model 'vit_tinny_patch16_224'; did you mean 'vit_tiny_patch16_224'",
        ),
        ("torchvision:resnet1", "torchvision has no classifier 'resnet1'; did you mean 'resnet1"),
        ("torchvision:resnet18.V9", "torchvision's resnet18 has no weights 'V9'"),
    ],
)
def test_an_unknown_name_is_one_line(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        load_library_model(source, Head(3))
    assert len(str(caught.value)) < 1000


@pytest.mark.slow
def test_hugging_faces_folder(tmp_path: Path) -> None:
    """The wrapper's logits are the model's, its preprocessing the file's, its classes the configuration's."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32, patch_size=16
    )
    config.id2label = {0: "ant", 1: "bee", 2: "cat"}
    theirs = ViTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    settings = {"size": {"height": 32, "width": 32}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps(settings | {"do_resize": True, "do_normalize": True, "image_processor_type": "ViTImageProcessor"})
    )
    found = load_library_model(f"hf:{tmp_path}")
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(found.model(images), theirs(pixel_values=images).logits)
    assert found.class_names == ["ant", "bee", "cat"]
    assert found.provenance.preprocessing.squash
    assert found.provenance.preprocessing.interpolation == "bilinear"


def contestant(num_classes: int, names: list[str] | None = None, *, weights: str = "timm") -> Contestant:
    size = Preprocessing(image_size=(8, 8))
    origin = Provenance(weights, (), "none", "none", size)
    return Contestant("a", "timm:a", torch.nn.Identity(), origin, names or [], num_classes, "0" * 12)


def test_a_head_of_the_datas_classes() -> None:
    assert head_columns(contestant(2, ["ant", "bee"]), ["ant", "bee"]) == [0, 1]
    assert head_columns(contestant(2, weights=RANDOM), ["ant", "bee"]) == [0, 1]


def test_a_head_is_read_by_the_names_of_its_classes() -> None:
    assert head_columns(contestant(3, ["cat", "bee", "ant"]), ["ant", "bee"]) == [2, 1]
    backwards = list(reversed(wnids()))
    assert head_columns(contestant(1000, backwards), ["n01440764", "n01443537"]) == [999, 998]


def test_a_head_of_imagenet_on_a_subset() -> None:
    """tench is 0 and goldfish 1 of the thousand."""
    words = ResNet18_Weights.IMAGENET1K_V1.meta["categories"]
    assert head_columns(contestant(1000, words), ["n01443537"]) == [1]
    assert head_columns(contestant(1000, [f"LABEL_{n}" for n in range(1000)]), ["n01443537"]) == [1]
    with pytest.raises(ValueError, match="in its order"):
        head_columns(contestant(1000, words[::-1]), ["n01443537"])
    some = ["n01443537", "n01440764"]
    assert head_columns(contestant(1000), some) == [1, 0]
    assert random_head_size(some) == 1000
    assert random_head_size(["ant", "bee"]) == 2


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (contestant(7), "its 7 classes are not the data's 2, nor ImageNet's thousand"),
        (contestant(2, ["bee", "cat"]), "its 2 classes are not the data's 2, .* .the data's 'ant' is none of them"),
        (contestant(1000, [f"thing {n}" for n in range(1000)]), "nor ImageNet's thousand in its order"),
        (contestant(1000), "the data's are not among them .the first is 'ant'.; folders named by wnid"),
    ],
)
def test_a_head_of_other_classes_is_refused(head: Contestant, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        head_columns(head, ["ant", "bee"])


def test_names_are_short_and_differ() -> None:
    assert short_names(["runs/vit", "runs/resnet"]) == ["vit", "resnet"]
    assert short_names(["a/vit", "b/vit", "c/other"]) == ["a/vit", "b/vit", "other"]
    assert short_names(["timm:x", "timm:x"]) == ["x (1)", "x (2)"]
    assert short_names(["timm:resnet18", "torchvision:resnet18", "hf:a/b"]) == [
        "timm/resnet18",
        "torchvision/resnet18",
        "b",
    ]
