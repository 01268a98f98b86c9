"""The one door: whatever the source, a model with what is known of it, or one line."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vit.config import Preprocessing
from vit.data.preprocessing import normalize, resize_and_crop
from vit.hub import open_model, short_names
from vit.hub.opening import open_models


def test_timms_model_has_timms_preprocessing_and_the_datas_classes() -> None:
    found = open_model("timm:test_vit.r160_in1k", random_weights=True, num_classes=7)
    assert found.model(torch.zeros(1, 3, 160, 160)).shape == (1, 7)
    assert found.preprocessing.image_size == (160, 160)
    assert found.preprocessing.crop_fraction == 0.95
    assert found.provenance.is_random
    assert found.provenance.data == ()


def test_random_weights_are_the_same_again_and_leave_the_generator_alone() -> None:
    before = torch.get_rng_state()
    models = [open_model("timm:test_vit", random_weights=True, num_classes=3, seed=seed) for seed in (0, 0, 1)]
    one, again, other = (model.identity for model in models)
    assert one == again != other
    assert torch.equal(before, torch.get_rng_state())


def test_models_have_one_size_or_each_its_own() -> None:
    names = ["vit_tiny_patch16_224", "resnet20"]
    for sizes, expected in ((64, [64, 64]), ([64], [64, 64]), ([96, 32], [96, 32])):
        opened = open_models(names, random_weights=True, image_size=sizes)
        assert [model.preprocessing.image_size for model in opened] == [(size, size) for size in expected]
    with pytest.raises(
        ValueError, match=r"^image_size: \[96, 32, 32\] is not valid: give one size, or one for each of"
    ):
        open_models(names, random_weights=True, image_size=[96, 32, 32])


def test_torchvisions_model() -> None:
    found = open_model("torchvision:shufflenet_v2_x0_5", random_weights=True, num_classes=5)
    assert found.preprocessing.image_size == (224, 224)
    assert math.floor(224 / found.preprocessing.crop_fraction) == 256
    assert found.num_classes == 5


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "timm:vit_tinny_patch16_224",
            "timm has no model 'vit_tinny_patch16_224'; did you mean 'vit_tiny_patch16_224'",
        ),
        (
            "timm:vit_small_patch16_224.augreg_in12k",
            "^model.pretrained: timm's vit_small_patch16_224 has no weights 'augreg_in12k'; did you mean 'augreg_in1k'",
        ),
        (
            "vit_small_patch16_224.augreg_in21k",
            "^model: .* it names pretrained weights; write timm:vit_small_patch16_224.augreg_in21k$",
        ),
        ("resnet18.a1_in1k", "it names pretrained weights; write timm:resnet18.a1_in1k$"),
        ("vit_small_patch16_224.pth", "there is no file 'vit_small_patch16_224.pth'$"),
        ("torchvision:resnet1", "torchvision has no classifier 'resnet1'; did you mean 'resnet1"),
        ("torchvision:resnet18.V9", "torchvision's resnet18 has no weights 'V9'"),
    ],
)
def test_an_unknown_name_is_one_line(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        open_model(source, random_weights=True)
    assert len(str(caught.value)) < 1000


def test_weights_at_hand_are_never_made_random(tmp_path: Path) -> None:
    """Of several models, only those by name are of random weights."""
    import timm
    from timm.models import save_for_hf

    save_for_hf(timm.create_model("test_vit", num_classes=3), tmp_path / "folder", safe_serialization=True)
    folder, file = str(tmp_path / "folder"), str(tmp_path / "folder" / "model.safetensors")
    sources = [folder, f"hf:{folder}", "timm:test_vit"]
    kept = open_model(folder).identity
    opened = open_models(sources, random_weights=True, seed=1)
    assert [model.provenance.is_random for model in opened] == [False, False, True]
    assert [model.identity == kept for model in opened] == [True, True, False]
    for source in (folder, f"hf:{folder}", file):
        with pytest.raises(ValueError, match=r"^random_weights: it has no effect on .*, only on names, as timm:NAME"):
            open_model(source, random_weights=True)
        with pytest.raises(ValueError, match=r"^--random_weights: True is not valid: it has no effect on"):
            open_models([source, source], random_weights=True)
    Path(file).unlink()
    assert open_model(folder, random_weights=True).provenance.is_random


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
    found = open_model(f"hf:{tmp_path}")
    images = torch.randn(2, 3, 32, 32)
    for implementation in ("ours", "theirs"):
        model = open_model(f"hf:{tmp_path}", implementation=implementation).model
        torch.testing.assert_close(model(images), theirs(pixel_values=images).logits, rtol=1e-4, atol=1e-5)
    assert found.class_names == ["ant", "bee", "cat"]
    assert found.preprocessing.squash
    assert found.preprocessing.interpolation == "bilinear"


def _resnet_folder(folder: Path, processor: dict[str, Any]) -> nn.Module:
    """A small ResNet of transformers with the file of an image processor beside it."""
    transformers = pytest.importorskip("transformers", reason="needs the extra 'text'")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    model: nn.Module = transformers.ResNetForImageClassification(config).eval()
    model.save_pretrained(folder)  # type: ignore[operator]
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return model


@torch.no_grad()
def test_an_old_resnet_of_hugging_face_sees_what_its_processor_makes(tmp_path: Path) -> None:
    """`size: 224` of its processor is neither a square nor the shorter side: 256 pixels, and the centre's 224."""
    from sklearn.datasets import load_sample_image

    processor = {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 224, "crop_pct": 0.875, "resample": 3}
    theirs = _resnet_folder(tmp_path, processor)
    transformers = pytest.importorskip("transformers", minversion="5.0", reason="has the class with PIL")
    photograph = Image.fromarray(load_sample_image("china.jpg")[:401])
    prepared = transformers.ConvNextImageProcessorPil(size=224)(photograph, return_tensors="np")["pixel_values"]
    opened = open_model(f"hf:{tmp_path}")
    images = normalize(resize_and_crop(photograph, opened.preprocessing)[None], opened.preprocessing)
    expected = theirs(pixel_values=torch.from_numpy(np.array(prepared))).logits
    torch.testing.assert_close(opened.model(images), expected, rtol=1e-4, atol=1e-5)


def test_half_precision_of_hugging_face_is_computed_in_float32(tmp_path: Path) -> None:
    theirs = _resnet_folder(tmp_path, {})
    theirs.half().save_pretrained(tmp_path)  # type: ignore[operator]
    opened = open_model(f"hf:{tmp_path}")
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(opened.model(images), theirs.float()(pixel_values=images).logits)


def test_weights_that_are_missing_are_not_drawn_at_random(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra 'text'")
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=16)
    unpooled = transformers.ViTModel(config, add_pooling_layer=False).eval()
    unpooled.save_pretrained(tmp_path / "unpooled")
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        found = open_model(f"hf:{tmp_path / 'unpooled'}", implementation="theirs").model(images)
        torch.testing.assert_close(found, unpooled(pixel_values=images).last_hidden_state[:, 0])
    _resnet_folder(tmp_path / "headless", {})
    file = tmp_path / "headless" / "model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor for name, tensor in tensors.items() if "classifier" not in name}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"could not be built by transformers \(its weights lack classifier\."):
        open_model(f"hf:{tmp_path / 'headless'}")


def test_an_unknown_image_processor_is_named_and_replaced_by_hand(tmp_path: Path) -> None:
    _resnet_folder(tmp_path, {"image_processor_type": "DonutImageProcessor", "size": [64, 64]})
    opened = open_model(f"hf:{tmp_path}")  # its weights can be looked into
    with pytest.raises(ValueError, match=r"DonutImageProcessor is not one of ViT, .*; give mean, std and image_size$"):
        _ = opened.preprocessing
    by_hand = open_model(f"hf:{tmp_path}", mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2), image_size=64)
    assert by_hand.preprocessing == Preprocessing(image_size=(64, 64), std=(0.2, 0.2, 0.2))
    with pytest.raises(ValueError, match=r"image_size: None is not valid: .* does not tell its own; give it"):
        open_model(f"hf:{tmp_path}", mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))


def test_names_are_short_and_differ() -> None:
    assert short_names(["runs/vit", "runs/resnet"]) == ["vit", "resnet"]
    assert short_names(["a/vit", "b/vit", "c/other"]) == ["a/vit", "b/vit", "other"]
    assert short_names(["timm:x", "timm:x"]) == ["x (1)", "x (2)"]
    assert short_names(["timm:resnet18", "torchvision:resnet18", "hf:a/b"]) == [
        "timm/resnet18",
        "torchvision/resnet18",
        "b",
    ]


IMAGE = Preprocessing(image_size=(8, 8))


class Flat(nn.Module):
    """Three logits an image."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(images.flatten(1))


def test_a_module_of_the_users_own() -> None:
    model = Flat()
    opened = open_model(model, preprocessing=IMAGE, class_names=["a", "b", "c"])
    assert opened.model is model
    assert (opened.num_classes, opened.preprocessing, opened.implementation) == (3, IMAGE, "its own code")
    with pytest.raises(ValueError, match="preprocessing: it is missing: Flat does not say how its images"):
        open_model(model)
    with pytest.raises(ValueError, match="one row of logits of 2 classes"):
        open_model(model, preprocessing=IMAGE, class_names=["a", "b"])
    with pytest.raises(ValueError, match="one row of logits"):
        open_model(nn.Identity(), preprocessing=IMAGE)


def test_a_function_is_imported_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_test.py").write_text("from torch import nn\ndef build(): return nn.Flatten()\nnumber = 3\n")
    monkeypatch.chdir(tmp_path)
    opened = open_model("mine_of_test:build", mean=(0.5,) * 3, std=(0.5,) * 3, image_size=4)
    assert (opened.num_classes, opened.preprocessing.image_size) == (48, (4, 4))
    for source, said in (("mine_of_test:absent", "absent"), ("no_such_file:build", "No module named 'no_such_file'")):
        with pytest.raises(ValueError, match=said):
            open_model(source)


def test_a_function_may_import_when_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "late_layers.py").write_text("from torch import nn\n\nlayer = nn.Flatten\n")
    (tmp_path / "late_model.py").write_text("def build():\n    from late_layers import layer\n\n    return layer()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(Path.cwd()))])
    before = list(sys.path)
    opened = open_model("late_model:build", mean=(0.5,) * 3, std=(0.5,) * 3, image_size=4)
    assert isinstance(opened.model, nn.Flatten)
    assert sys.path == before


def test_a_name_that_is_too_long_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^model: .*File name too long"):
        open_model("a" * 300)


def test_an_architectures_weights_are_random_and_it_says_so() -> None:
    opened = open_model("vit", num_classes=5, seed=1)
    assert opened.name == "vit · RANDOM"
    assert "random weights" in opened.summary()
    assert opened.num_classes == 5
    assert opened.identity != open_model("vit", num_classes=5).identity


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("vit", {"select": "last"}, "select: it has no effect on 'vit', only on runs"),
        ("vit", {"implementation": "theirs"}, "implementation: it has no effect on 'vit', only on libraries' models"),
        ("vit", {"mean": (0.5,) * 3}, "std: None is not valid: give mean and std together"),
        (
            "timm:test_vit",
            {"implementation": "theirs", "architecture": "vit"},
            "architecture: it has no effect on 'timm:test_vit', only on files where the implementation is 'theirs'",
        ),
        ("timm:test_vit", {"seed": 1}, "seed: it has no effect on 'timm:test_vit', only on random weights"),
        ("timm:test_byobnet", {"random_weights": True, "implementation": "ours"}, "it has the class ByobNet"),
        ("vitt_tiny_patch16_224", {}, "did you mean 'vit_tiny_patch16_224'"),
        ("vit_base", {}, "did you mean 'vit_base_patch16_224'"),
        ("vit", {"mean": 0.5, "std": 0.5}, "mean: 0.5 is not valid: it must be a list of numbers"),
        ("vit", {"mean": (0.5,), "std": (0.5,)}, r"mean: \[0.5\] is not valid: give three numbers"),
        ("vit", {"image_size": "x"}, "image_size: 'x' is not valid: it must be a whole number or a list of 2 whole"),
        ("vit", {"image_size": 33}, r"image_size: \(33, 33\) is not valid: the patch height 4 must divide"),
        ("vit", {"preprocessing": Preprocessing(image_size=(33, 32))}, r"\(33, 32\) is not valid: the patch height 4"),
        ("vit", {"num_classes": "x"}, "num_classes: 'x' is not valid: it must be a whole number"),
        ("vit", {"class_names": "cat"}, "class_names: 'cat' is not valid: it must be a list of texts"),
        ("vit", {"num_classes": 2, "class_names": ["a", "a"]}, "class_names: .*two classes have the same name"),
        ("vit", {"weights": "average"}, "weights: 'average' is not valid: it must be one of 'auto', 'raw', 'ema'"),
        ("vit", {"seed": -1}, "seed: -1 is not valid: it must be at least 0"),
        ("vit", {"preprocessing": 64}, "preprocessing: 64 is not valid: it must be a Preprocessing"),
        (None, {}, "source: None is not valid: it must be text or a Path or a Module"),
    ],
)
def test_what_has_no_effect_or_is_impossible_is_one_line(source: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        open_model(source, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_whose_code_computes_is_said() -> None:
    ours = open_model("timm:test_vit", random_weights=True, num_classes=3)
    theirs = open_model("timm:test_vit", random_weights=True, num_classes=3, implementation="theirs")
    assert (ours.implementation, theirs.implementation) == ("vit", "timm")
    images = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        torch.testing.assert_close(ours.model(images), theirs.model(images), rtol=1e-4, atol=1e-5)
    other = open_model("timm:test_byobnet", random_weights=True, num_classes=3)
    assert other.summary().endswith(
        "computed by timm ('test_byobnet' is not supported: it has the class ByobNet; a plain VisionTransformer is)"
    )


def test_random_weights_of_another_librarys_architecture_are_said() -> None:
    opened = open_model("timm:test_vit", random_weights=True, num_classes=3)
    assert "random weights" in opened.summary()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("build = 3", "build is no function"),
        ("def build(width): ...", "its function is called without arguments"),
        ("def other(): ...", "has no attribute 'build'"),
    ],
)
def test_a_users_function_that_cannot_be_called_is_one_line(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"users_{len(body)}"
    (tmp_path / f"{name}.py").write_text(body + "\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said) as caught:
        open_model(f"{name}:build")
    assert "\n" not in str(caught.value)


def test_an_error_inside_a_users_function_keeps_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_broken.py").write_text("def build():\n    return None.width\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'width'"):
        open_model("users_broken:build")


@pytest.mark.parametrize(
    ("source", "written"), [("my.py:build", "my:build"), ("./models/my.py:build", "models.my:build")]
)
def test_a_path_in_the_place_of_a_module_is_answered_with_the_module(source: str, written: str) -> None:
    with pytest.raises(ValueError, match=rf"model: '{source}' is not valid: .* write {written}$"):
        open_model(source)


def test_an_option_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"^image_sizes: it is no option of open_model; did you mean 'image_size'\?"):
        open_models(["vit"], image_sizes=64)


@pytest.mark.parametrize("error", [AssertionError("Input height (96) doesn't match"), IndexError(), ValueError("no")])
def test_a_module_that_fails_on_an_image_is_named_with_the_image(error: Exception) -> None:
    class Failing(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            raise error

    said = (
        rf"^model: 'Failing' fails on an image of 96×64 pixels in float32 on the CPU \({str(error)[:5] or 'IndexError'}"
    )
    with pytest.raises(ValueError, match=said.replace("(96)", "")):
        open_model(Failing(), preprocessing=Preprocessing(image_size=(96, 64)))


def test_timms_own_model_refuses_sizes_that_its_patches_do_not_divide() -> None:
    with pytest.raises(ValueError, match=r"^image_size: \(100, 100\) is not valid: the patches of .* must divide it"):
        open_model("timm:test_vit", random_weights=True, implementation="theirs", image_size=100)
