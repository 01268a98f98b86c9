"""Frozen features are what the model computes: every kind against a computation of its own, for ours and timm's."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from vit.config import Preprocessing, ResNetConfig, ViTConfig
from vit.data.preprocessing import normalize
from vit.engine import make_accelerator
from vit.evaluation.frozen_features import FEATURES, feature_reader, resolve_features
from vit.hub import OpenedModel, open_model
from vit.libraries import NEVER_TRAINED
from vit.libraries.transformers import TransformersModel
from vit.models import VisionTransformer, build_model
from vit.models.inference import for_inference

TINY: dict[str, Any] = {"patch_size": (4, 4), "num_classes": 3, "width": 24, "depth": 5, "num_heads": 3}


def pixels(height: int = 8, width: int = 12) -> Tensor:
    return torch.randint(256, (5, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def opened(model: nn.Module, size: tuple[int, int] = (8, 12), implementation: str = "vit") -> OpenedModel:
    return OpenedModel(
        name="it",
        source="it",
        model=model.eval(),
        provenance=NEVER_TRAINED,
        stated_preprocessing=Preprocessing(image_size=size),
        class_names=[],
        num_classes=3,
        implementation=implementation,
    )


def vit(**options: object) -> OpenedModel:
    torch.manual_seed(0)
    return opened(build_model(ViTConfig(image_size=(8, 12), **{**TINY, **options})))


def read(model: OpenedModel, *kinds: str, precision: str = "fp32") -> dict[str, Tensor]:
    return feature_reader(model, kinds, make_accelerator("cpu", precision))(pixels(*model.preprocessing.image_size))


def by_hand(model: OpenedModel) -> dict[str, Tensor]:
    """Every kind of our model's features from the outputs of its blocks."""
    outputs: list[Tensor] = []
    assert isinstance(model.model, VisionTransformer)
    for block in model.model.blocks:
        block.register_forward_hook(lambda *call: outputs.append(call[2]))
    with torch.no_grad():
        model.model(normalize(pixels(), model.preprocessing))
        last = [model.model.norm(output) for output in outputs[-4:]]
        classes, means = [each[:, 0] for each in last], [each[:, 3:].mean(1) for each in last]  # class, two registers
        return {
            "head": model.model.pool(last[-1]),
            "class": classes[-1],
            "patches": means[-1],
            "class+patches": torch.cat([classes[-1], means[-1]], 1),
            "class-4": torch.cat(classes, 1),
            "patches-4": torch.cat(means, 1),
            "class+patches-4": torch.cat([*classes, means[-1]], 1),
        }


@pytest.mark.parametrize("pooling", ["cls", "gap", "map"])
def test_every_kind_in_one_pass(pooling: str) -> None:
    model = vit(num_registers=2, pooling=pooling)
    expected = by_hand(model)
    found = read(model, *FEATURES)
    assert list(found) == list(FEATURES) == list(expected)
    for kind, features in found.items():
        torch.testing.assert_close(features, expected[kind], atol=2e-5, rtol=1e-4, msg=kind)
    torch.testing.assert_close(read(model, "head")["head"], expected["head"], atol=2e-5, rtol=1e-4)


def test_the_features_of_a_head_are_what_it_reads() -> None:
    for options in ({}, {"distillation_token": True}, {"representation_width": 7}):
        model = vit(**options)
        features = read(model, "head")["head"]
        with torch.no_grad():
            images = normalize(pixels(), model.preprocessing)
            assert isinstance(model.model, VisionTransformer)
            expected = model.model.forward_head(model.model.forward_features(images), pre_logits=True)
        torch.testing.assert_close(features, expected, atol=2e-5, rtol=1e-4)


def test_the_model_itself_stays_as_it_was() -> None:
    model = vit()
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    read(replace(model, stated_preprocessing=Preprocessing(image_size=(16, 16))), "head", precision="bf16")
    after = model.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_features_that_are_no_numbers_are_refused() -> None:
    model = vit()
    with torch.no_grad():
        model.model.get_parameter("norm.weight").fill_(torch.nan)
    with pytest.raises(ValueError, match="its 'head' features of an image are infinite or NaN in fp32"):
        read(model, "head")


def test_another_precision_computes_by_its_copy() -> None:
    model = vit()
    found = read(model, "head", precision="bf16")["head"]
    assert isinstance(model.model, VisionTransformer)
    copy = for_inference(model.model, torch.bfloat16)
    with torch.inference_mode():
        images = normalize(pixels(), model.preprocessing).bfloat16()
        expected = copy.forward_head(copy.forward_features(images), pre_logits=True).float()
    assert not torch.equal(found, read(model, "head")["head"])
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)


def test_timms_own_tokens_are_ours() -> None:
    ours, theirs = (
        open_model("timm:test_vit", random_weights=True, implementation=each) for each in ("ours", "theirs")
    )
    theirs.model.eval()
    kinds = ("head", "class", "patches", "class-4", "class+patches-4")
    found, expected = read(ours, *kinds), read(theirs, *kinds)
    for kind in kinds:
        torch.testing.assert_close(found[kind], expected[kind], atol=1e-4, rtol=1e-3, msg=kind)


def test_a_pooled_map_stands_for_every_kind() -> None:
    own = opened(build_model(ResNetConfig(depth=18, stem="cifar", num_classes=3)), (16, 16))
    timms = opened(timm.create_model("test_byobnet", num_classes=3), (32, 32), "timm")
    plain = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    for model in (own, timms, opened(plain, (16, 16), "function")):
        assert resolve_features(model, ["class", "patches-4"]) == {"class": "head", "patches-4": "head"}
        features = read(model, "head")["head"]
        head = [module for module in model.model.modules() if isinstance(module, nn.Linear)][-1]
        with torch.no_grad():
            logits = model.model(normalize(pixels(*model.preprocessing.image_size), model.preprocessing))
            torch.testing.assert_close(head(features), logits, atol=1e-4, rtol=1e-3)


def test_the_tokens_of_a_block_are_not_kept_for_the_head() -> None:
    class Watched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.head, self.is_kept = nn.Linear(3, 4), nn.Linear(4, 3), True

        def forward(self, images: Tensor) -> Tensor:
            tokens = images.flatten(2).transpose(1, 2)
            given = weakref.ref(tokens)
            tokens = self.mix(tokens)
            self.is_kept = given() is not None
            logits: Tensor = self.head(tokens.mean(dim=1))
            return logits

    model = Watched()
    assert read(opened(model, implementation="function"), "head")["head"].shape == (5, 4)
    assert not model.is_kept


PLAIN = {"hidden_size": 24, "num_hidden_layers": 5, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
LIBRARIES: dict[str, tuple[dict[str, Any], str, int, bool]] = {
    "ViT": ({}, "layernorm", 1, True),
    "Dinov2WithRegisters": ({"num_register_tokens": 3}, "layernorm", 4, True),
    "DINOv3ViT": ({"num_register_tokens": 3}, "norm", 4, True),
    "ViTMSN": ({}, "layernorm", 1, True),
    "IJepa": ({}, "layernorm", 0, False),
    "CLIPVision": ({}, "post_layernorm", 1, True),
    "SiglipVision": ({}, "post_layernorm", 0, False),
    "Siglip2Vision": ({"num_patches": 4}, "post_layernorm", 0, False),
    "Aimv2Vision": ({}, "rms_norm", 0, False),
    "Beit": ({"use_mean_pooling": False}, "layernorm", 1, True),
}
"""transformers' classes: settings, the final norm, prefix tokens, whether the first of them is a class token."""


def of_transformers(kind: str) -> OpenedModel:
    import transformers

    torch.manual_seed(0)
    sizes = {key: value for key, value in PLAIN.items() if key != "image_size" or kind != "Siglip2Vision"}
    settings = getattr(transformers, f"{kind}Config")(**{**sizes, "intermediate_size": 32, **LIBRARIES[kind][0]})
    model = TransformersModel(getattr(transformers, f"{kind}Model")(settings).eval())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return opened(model, (16, 16), "transformers")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", LIBRARIES)
def test_tokens_of_transformers_are_its_own_hidden_states(kind: str) -> None:
    model, (_, norm, num_prefix, has_class) = of_transformers(kind), LIBRARIES[kind]
    kinds = [each for each in FEATURES if has_class or not each.startswith("class")]
    assert list(resolve_features(model, kinds).values()) == kinds
    images = normalize(pixels(16, 16), model.preprocessing)
    own: Any = model.model
    inputs = own._rows(images) if kind == "Siglip2Vision" else {"pixel_values": images}
    with torch.no_grad():
        output = own.model(**inputs, output_hidden_states=True)
        final = [module for name, module in own.named_modules() if name.split(".")[-1] == norm][-1]
        layers = [final(state) for state in output.hidden_states[-4:]]
        if kind not in ("CLIPVision", "DINOv3ViT"):  # which do not give the states so
            torch.testing.assert_close(layers[-1], output.last_hidden_state, atol=1e-5, rtol=1e-4)
    means = [layer[:, num_prefix:].mean(dim=1) for layer in layers]
    classes = [layer[:, 0] for layer in layers]
    found = read(model, *kinds)
    torch.testing.assert_close(found["patches"], means[-1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found["patches-4"], torch.cat(means, dim=1), atol=1e-5, rtol=1e-4)
    if has_class:
        torch.testing.assert_close(found["class+patches"], torch.cat((classes[-1], means[-1]), 1), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(found["class-4"], torch.cat(classes, dim=1), atol=1e-5, rtol=1e-4)
    else:
        with pytest.raises(ValueError, match="it has no class token; take 'patches'"):
            resolve_features(model, ["class"])


def test_tokens_of_torchvision_are_its_encoders() -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.VisionTransformer(16, 8, num_layers=5, num_heads=2, hidden_dim=24, mlp_dim=32)
    model = opened(theirs.eval(), (16, 16), "torchvision")
    found = read(model, "head", "class+patches")
    encoded: list[Tensor] = []
    theirs.encoder.register_forward_hook(lambda *call: encoded.append(call[2]))
    with torch.no_grad():
        theirs(normalize(pixels(16, 16), model.preprocessing))
    expected = torch.cat((encoded[0][:, 0], encoded[0][:, 1:].mean(dim=1)), dim=1)
    torch.testing.assert_close(found["class+patches"], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found["head"], encoded[0][:, 0], atol=1e-5, rtol=1e-4)


def test_tokens_of_a_naflexvit_are_its_own() -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("naflexvit_base_patch16_parfac_gap", embed_dim=24, num_heads=2, depth=5).eval()
    model = opened(theirs, (32, 48), "timm")
    found = read(model, "patches", "patches-4")
    with torch.no_grad():
        tokens = theirs.forward_features(normalize(pixels(32, 48), model.preprocessing))
    tokens = tokens["patches"] if isinstance(tokens, dict) else tokens
    torch.testing.assert_close(found["patches"], tokens[:, 4:].mean(dim=1), atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="it has no class token"):
        resolve_features(model, ["class"])


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [
        (vit(), "cls", "--features: 'cls' is not valid: choose from head, class, "),
        (vit(class_token=False, pooling="gap"), "class+patches", "it has no class token; take 'patches'"),
        (vit(depth=3), "patches-4", "it has 3 blocks"),
        (
            opened(nn.Sequential(nn.MultiheadAttention(4, 1)), implementation="function"),
            "patches",
            "it is computed by function, and only its head's input is read: 'head'",
        ),
    ],
)
def test_a_kind_that_a_model_lacks_is_refused(model: OpenedModel, kind: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        resolve_features(model, ["head", kind])
