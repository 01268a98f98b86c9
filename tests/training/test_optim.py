"""Which parameter decays, at which rate, and by which rule."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from torch.optim import SGD, AdamW

from vit.config import OptimConfig
from vit.config.run import OptimizerName
from vit.hub import create_model
from vit.models import Classifier
from vit.models.contrastive import ContrastiveModel, ProjectionConfig
from vit.models.model import Model
from vit.tasks.translation.config import TranslatorConfig
from vit.tasks.translation.translator import build_translator
from vit.training.muon import Muon
from vit.training.optim import build_optimizers, parameter_groups, set_learning_rate

EXEMPT = ("bias", "norm", "positions", "token", "gamma", "probe")


@pytest.fixture(scope="module")
def model() -> Classifier:
    return create_model(
        "vit",
        num_classes=3,
        image_size=8,
        width=16,
        depth=3,
        num_heads=2,
        num_registers=1,
        layer_scale=0.1,
        qk_norm=True,
        distillation_token=True,
    )


def entries(model: Model, config: OptimConfig) -> dict[str, tuple[str, dict[str, Any]]]:
    """Parameter name → the optimizer's class and the group it is in."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {}
    for optimizer in build_optimizers(model, config):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                assert names[parameter] not in found, "a parameter is updated twice"
                found[names[parameter]] = (type(optimizer).__name__, group)
    return found


@pytest.mark.parametrize("name", ["adamw", "sgd", "lamb", "muon"])
def test_every_parameter_is_updated_once_and_only_matrices_decay(name: OptimizerName, model: Classifier) -> None:
    found = entries(model, OptimConfig(name=name, weight_decay=0.3))
    assert set(found) == {name for name, _ in model.named_parameters()}
    for parameter, (_, group) in found.items():
        exempt = any(word in parameter for word in EXEMPT)
        assert group["weight_decay"] == (0.0 if exempt else 0.3), parameter
    assert any(group["weight_decay"] > 0 for _, group in found.values())


def test_a_resnet_decays_convolutions_and_head_only() -> None:
    found = entries(create_model("resnet18_cifar", num_classes=3, width=8), OptimConfig(weight_decay=0.3))
    for parameter, (_, group) in found.items():
        decays = parameter.endswith("weight") and "bn" not in parameter and "downsample.1" not in parameter
        assert group["weight_decay"] == (0.3 if decays else 0.0), parameter


def test_rates_shrink_by_the_layer(model: Classifier) -> None:
    found = entries(model, OptimConfig(layer_decay=0.5))
    scales = {name: group["lr_scale"] for name, (_, group) in found.items()}
    assert scales["head.weight"] == scales["distillation_head.bias"] == scales["norm.weight"] == 1
    assert [scales[f"blocks.{i}.attention.qkv.weight"] for i in range(3)] == [0.125, 0.25, 0.5]
    assert scales["embedding.projection.weight"] == scales["class_token"] == scales["positions.grid"] == 0.0625


def test_the_scheduled_rate_reaches_every_group_times_its_scale(model: Classifier) -> None:
    for name in ("adamw", "muon"):
        optimizers = build_optimizers(model, OptimConfig(name=name, layer_decay=0.5))
        set_learning_rate(optimizers, 0.2)
        assert {group["lr"] for group in parameter_groups(optimizers)} == {0.2 * 0.5**power for power in range(5)}


def test_muon_takes_the_blocks_matrices_and_adamw_the_rest(model: Classifier) -> None:
    found = entries(model, OptimConfig(name="muon", momentum=0.8, betas=(0.7, 0.9)))
    for parameter, (kind, group) in found.items():
        matrix = parameter.startswith("blocks.") and parameter.endswith(".weight") and "norm" not in parameter
        assert kind == ("Muon" if matrix else "AdamW"), parameter
        if kind == "Muon":
            assert group["momentum"] == 0.8
            assert group["parts"] == (3 if "qkv" in parameter else 1), parameter
        else:
            assert group["betas"] == (0.7, 0.9)


@pytest.mark.parametrize(
    ("name", "decoder"),
    [
        ("bahdanau", {f"decoder.from_{each}.weight" for each in ("token", "context", "state")}),
        ("rnn", {"decoder.layers.0.weight_ih_l0", "decoder.layers.0.weight_hh_l0"}),
    ],
)
def test_muon_takes_a_grus_three_gates_apart(name: Literal["bahdanau", "rnn"], decoder: set[str]) -> None:
    translator = build_translator(
        TranslatorConfig(name=name, width=4, depth=1), source_vocabulary=5, target_vocabulary=7
    )
    found = entries(translator, OptimConfig(name="muon"))
    encoder = {f"encoder.layers.0.weight_{kind}h_l0{way}" for kind in "ih" for way in ("", "_reverse")}
    assert {parameter for parameter, (_, group) in found.items() if group.get("parts") == 3} == encoder | decoder


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lamb_moves_a_matrix_by_the_rate_times_its_norm_whatever_its_decay(decay: float, model: Classifier) -> None:
    model = copy.deepcopy(model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    (lamb,) = build_optimizers(model, OptimConfig(name="lamb", lr=0.01, weight_decay=decay))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    lamb.step()
    moved = {name: (parameter.detach() - before[name]).norm() for name, parameter in model.named_parameters()}
    weight, norm = "blocks.0.attention.qkv.weight", "blocks.0.norm1.weight"
    torch.testing.assert_close(moved[weight], 0.01 * before[weight].norm())
    torch.testing.assert_close(moved[norm], 0.01 * torch.ones_like(before[norm]).norm())


def test_muon_takes_a_resnets_convolutions_but_the_stem() -> None:
    resnet = create_model("resnet18_cifar", num_classes=3, image_size=8, width=4)
    for parameter, (kind, _) in entries(resnet, OptimConfig(name="muon")).items():
        convolution = parameter.startswith("layer") and resnet.get_parameter(parameter).ndim == 4
        assert kind == ("Muon" if convolution else "AdamW"), parameter


def test_each_name_is_its_rule(model: Classifier) -> None:
    (adamw,) = build_optimizers(model, OptimConfig(betas=(0.7, 0.8)))
    (sgd,) = build_optimizers(model, OptimConfig(name="sgd", momentum=0.6))
    (plain,) = build_optimizers(model, OptimConfig(name="sgd", momentum=0.0))
    (lamb,) = build_optimizers(model, OptimConfig(name="lamb", betas=(0.7, 0.8)))
    muon, rest = build_optimizers(model, OptimConfig(name="muon"))
    assert isinstance(adamw, AdamW)
    assert adamw.defaults["betas"] == (0.7, 0.8)
    assert isinstance(sgd, SGD)
    assert (sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (0.6, True)
    assert (plain.defaults["momentum"], plain.defaults["nesterov"]) == (0.0, False)
    assert type(lamb).__name__ == "Lamb"
    assert lamb.defaults["max_grad_norm"] is None  # the loop clips
    assert isinstance(muon, Muon)
    assert isinstance(rest, AdamW)


def test_fast_bf16_is_muons_working_precision(model: Classifier) -> None:
    for fast, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        muon = build_optimizers(model, OptimConfig(name="muon"), fast)[0]
        assert isinstance(muon, Muon)
        assert muon.work_dtype == dtype


@pytest.mark.parametrize("name", ["adamw", "sgd", "lamb"])
def test_what_is_frozen_is_left_out(name: OptimizerName) -> None:
    frozen = create_model("vit", num_classes=3, image_size=8, width=16, depth=1, num_heads=2)
    for parameter_name, parameter in frozen.named_parameters():
        parameter.requires_grad_(parameter_name.startswith("head."))
    assert set(entries(frozen, OptimConfig(name=name))) == {"head.weight", "head.bias"}


def test_nothing_to_train_is_refused() -> None:
    headless = create_model("vit", num_classes=0, image_size=8, width=16, depth=1, num_heads=2).requires_grad_(False)
    with pytest.raises(ValueError, match=r"model\.freeze_backbone: nothing is left to train"):
        build_optimizers(headless, OptimConfig())


def test_a_rule_that_would_have_no_effect_is_refused() -> None:
    resnet = create_model("resnet18_cifar", num_classes=3, image_size=8, width=4)
    for name, parameter in resnet.named_parameters():
        parameter.requires_grad_(name.startswith("fc."))
    with pytest.raises(ValueError, match=r"optim\.name: 'muon' is not valid: no block's matrix is trained"):
        build_optimizers(resnet, OptimConfig(name="muon"))
    with pytest.raises(ValueError, match=r"optim\.layer_decay: 0\.5 is not valid: only one layer is trained"):
        build_optimizers(resnet, OptimConfig(layer_decay=0.5))


def test_muon_leaves_an_encoders_pooling_to_adamw() -> None:
    """As in classification, where it is after the last block too."""
    encoder = create_model(
        "vit", num_classes=0, image_size=8, patch_size=4, width=8, depth=1, num_heads=1, pooling="map"
    )
    model = ContrastiveModel(encoder, ProjectionConfig(hidden=4, width=4))
    kinds = {name: kind for name, (kind, _) in entries(model, OptimConfig(name="muon")).items()}
    assert {name.split(".")[1] for name, kind in kinds.items() if kind == "Muon"} == {"blocks"}
    assert any(name.startswith("encoder.attention_pool") for name in kinds)
