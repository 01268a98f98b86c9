"""A model by name, with weights from where the user says."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import vit
from vit.config import ModelConfig
from vit.hub import create_model, load_model, open_model
from vit.models import VisionTransformer, config_to_dict, zoo
from vit.runs import Checkpoint, write_checkpoint
from vit.weights import write_tensors

OPTIONS: dict[str, Any] = {"image_size": 8, "patch_size": 4, "width": 16, "depth": 1, "num_heads": 2}
PREPROCESSING = {
    "image_size": [8, 8],
    "crop_fraction": 0.875,
    "interpolation": "bilinear",
    "antialias": True,
    "mean": [0.1, 0.2, 0.3],
    "std": [0.4, 0.5, 0.6],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two checkpoints of a tiny model: the best, with an average, and the last."""
    folder = tmp_path_factory.mktemp("run")
    for step in (1, 2):
        torch.manual_seed(step)
        raw, averaged = (create_model("vit", num_classes=3, **OPTIONS) for _ in range(2))
        state = {
            "task": {
                "model": config_to_dict(raw.config),
                "preprocessing": PREPROCESSING,
                "class_names": ["a", "b", "c"],
            },
            "best": {"step": 1, "value": 0.5},
        }
        write_checkpoint(folder, step, Checkpoint(state, {"model": raw.state_dict(), "ema": averaged.state_dict()}))
    return folder


def weights_at(run: Path, step: int, group: str) -> dict[str, torch.Tensor]:
    from vit.runs import read_checkpoint

    return read_checkpoint(run / "checkpoints" / f"step-{step:08d}").tensors[group]


@pytest.mark.parametrize("select", ["best", "last"])
@pytest.mark.parametrize("weights", ["auto", "raw", "ema"])
def test_a_run_gives_the_weights_that_are_asked_for(select: Any, weights: Any, run: Path) -> None:
    loaded = open_model(run, select=select, weights=weights)
    assert loaded.state is not None
    expected = weights_at(run, {"best": 1, "last": 2}[select], "model" if weights == "raw" else "ema")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.model.state_dict().items())
    assert loaded.class_names == ["a", "b", "c"] == loaded.state["task"]["class_names"]
    assert loaded.preprocessing is not None
    assert loaded.preprocessing.mean == (0.1, 0.2, 0.3)
    assert loaded.preprocessing.image_size == (8, 8)


def test_a_run_without_an_average_is_said_to_have_none(tmp_path: Path) -> None:
    model = create_model("vit", num_classes=3, **OPTIONS)
    task = {"model": config_to_dict(model.config), "preprocessing": PREPROCESSING, "class_names": ["a", "b", "c"]}
    state = {"task": task}
    write_checkpoint(tmp_path, 1, Checkpoint(state, {"model": model.state_dict()}))
    with pytest.raises(ValueError, match=r"weights: 'ema' is not valid: .* kept no average"):
        open_model(tmp_path, weights="ema")
    assert open_model(tmp_path).model.config == model.config


def test_an_opened_model_is_shown_in_one_line(run: Path) -> None:
    shown = repr(open_model(run))
    assert re.fullmatch(r"OpenedModel\('.*': VisionTransformer, .* loaded; computed by vit\)", shown)


def test_the_package_offers_both_names() -> None:
    assert vit.create_model is create_model
    assert "vit_base_patch16_224" in vit.list_models()


def test_a_runs_architecture_needs_no_name(run: Path) -> None:
    model = create_model(pretrained=str(run))
    assert model.config.width == 16
    assert create_model(pretrained=str(run), num_classes=0)(torch.zeros(1, 3, 8, 8)).shape == (1, 16)
    bigger = create_model(pretrained=str(run), image_size=(8, 16))
    assert isinstance(bigger, VisionTransformer)
    assert bigger.config.grid_size == (2, 4)
    assert bigger(torch.zeros(1, 3, 8, 16)).shape == (1, 3)


def test_a_checkpoints_folder_is_as_good_as_the_run(run: Path) -> None:
    model = create_model(pretrained=str(run / "checkpoints" / "step-00000002"))
    assert torch.equal(model.get_parameter("head.weight"), weights_at(run, 2, "ema")["head.weight"])


def test_the_backbone_is_frozen_and_the_head_is_not(run: Path) -> None:
    model = create_model(pretrained=str(run), freeze_backbone=True)
    assert {name for name, each in model.named_parameters() if each.requires_grad} == {"head.weight", "head.bias"}
    assert all(each.requires_grad for each in create_model(pretrained=str(run)).parameters())


def test_a_size_alone_is_refused_where_the_preprocessing_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "tiny.safetensors"
    write_tensors(path, create_model("vit_tiny_patch16_224", num_classes=2, image_size=32).state_dict())
    options: dict[str, Any] = {"architecture": "vit_tiny_patch16_224", "image_size": 48}
    with pytest.raises(ValueError, match=r"image_size: \(48, 48\) .* does not say how its images.*give mean and std"):
        open_model(path, **options)
    opened = open_model(path, mean=(0.5,) * 3, std=(0.5,) * 3, **options)
    assert opened.preprocessing.image_size == (48, 48)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("vit_small_patch16_224.augreg_in21k", "timm:vit_small_patch16_224.augreg_in21k"),
        ("hf:facebook/dinov2-small", "hf:facebook/dinov2-small"),
        ("torchvision:vit_b_16", "torchvision:vit_b_16"),
    ],
)
def test_the_name_of_weights_is_no_name_of_an_architecture(name: str, written: str, run: Path) -> None:
    """Its architecture alone would have random weights."""
    with pytest.raises(ValueError, match=rf"model\.name: .* it names weights; create_model\(pretrained='{written}'\)$"):
        create_model(name)
    with pytest.raises(ValueError, match=rf"model\.name: .* write --model\.pretrained {written}$"):
        load_model(ModelConfig(name=name))
    advice = "name its architecture alone, vit_small_patch16_224" if written.startswith("timm:") else "leave it out"
    with pytest.raises(ValueError, match=rf"model\.name: .* names pretrained weights; {advice}$"):
        load_model(ModelConfig(name=name, pretrained=str(run)))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("facebook/dinov2-small", r"if it is a model of Hugging Face's, write hf:facebook/dinov2-small$"),
        ("vit_small_patch16_224.augreg_in21k", r"write timm:vit_small_patch16_224\.augreg_in21k$"),
        ("vit_small_patch16_224", r"it is an architecture, without weights; model\.name takes it$"),
        ("runs/your_imges", r"did you mean 'runs/your_images'\?$"),
        ("image.png", r"it is neither a weights file \(\.safetensors, .*\) nor a run folder$"),
        ("models/mine.py:build", r"a module's name stands before the colon; write models\.mine:build$"),
        ("nowhere", r"nor package\.file:FUNCTION$"),
    ],
)
def test_pretrained_weights_that_are_not_there_get_a_suggestion(
    place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/your_images").mkdir(parents=True)
    Path("image.png").touch()
    with pytest.raises(ValueError, match=rf"^model\.pretrained: '{place}' is not valid: .*{said}"):
        create_model(pretrained=place)


@pytest.mark.parametrize(
    ("own", "name", "value"),
    [
        ({"num_heads": 4}, "num_heads", 2),
        ({"feedforward": "quick_gelu"}, "feedforward", "gelu"),
        ({"norm_eps": 1e-5}, "norm_eps", 1e-6),
        ({"positions": "learned_1d_rope"}, "positions", "learned_1d"),
        ({"positions": "learned_1d_rope", "rope_temperature": 9.0}, "rope_temperature", 100.0),
        ({"pooling": "map", "pool_heads": 4}, "pool_heads", 2),
        ({"pooling": "gap"}, "pooling", "cls"),
    ],
)
def test_what_no_tensor_tells_is_compared_with_the_configuration_of_the_weights(
    own: dict[str, Any], name: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = f"def build():\n    return vit.create_model('vit', num_classes=3, **{OPTIONS | own})\n"
    (tmp_path / "untold_models.py").write_text(f"import vit\n\n{build}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "untold_models", raising=False)
    monkeypatch.setitem(zoo.IRREGULAR, "small_vit", ("tiny", 4, 8, {"num_heads": 2}))
    place, sizes = "untold_models:build", {key: OPTIONS[key] for key in ("width", "depth")}
    unset = sizes | {key: chosen for key, chosen in own.items() if key != name}
    said = rf"model\.{name}: {value!r} is not valid: {place} has .* leave the name small_vit out, or set model\.{name}$"
    with pytest.raises(ValueError, match=said):
        create_model("small_vit", pretrained=place, **unset)
    assert getattr(create_model(pretrained=place).config, name) == own[name]
    for chosen in (own[name], value):
        model = create_model("small_vit", pretrained=place, **unset, **{name: chosen})
        assert getattr(model.config, name) == chosen, "what is set stands"


def test_unknown_names_and_options_get_a_suggestion(run: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.name: 'vit_bse_patch16_224' .*did you mean 'vit_base_patch16_224'"):
        create_model("vit_bse_patch16_224")
    with pytest.raises(ValueError, match=r"model\.widht: there is no such setting; did you mean 'width'"):
        create_model("vit", widht=3)
    with pytest.raises(ValueError, match=r"model\.img_size: there is no such setting; here it is called image_size"):
        create_model("vit", img_size=32)
    with pytest.raises(
        ValueError, match=r"model\.pretrained: True is not valid: it says which weights, as 'timm:NAME'"
    ):
        create_model("vit_tiny_patch16_224", pretrained=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"model\.drop_path_rate: .*; here it is called stochastic_depth_rate"):
        create_model("vit", drop_path_rate=0.1)
    with pytest.raises(ValueError, match=r"model\.pretrained: .* does not have embedding\.stem"):
        create_model(pretrained=str(run), stem="resnet", patch_size=8)
    with pytest.raises(ValueError, match=r"model\.pretrained: .*absent"):
        create_model("vit", pretrained=str(run / "absent"))


# ------------------------------------------------------------------ timm's hub, without a network


def small_timm(name: str, **_: Any) -> nn.Module:
    torch.manual_seed(0)
    return create_timm(name, pretrained=False)


create_timm = timm.create_model


def test_timms_weights_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm, "create_model", small_timm)
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    theirs: Any = small_timm(name).eval()
    loaded = load_model(ModelConfig(pretrained=f"timm:{name}"))
    assert loaded.model.config.num_classes == 1000
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model.eval()(images), theirs(images), rtol=1e-5, atol=1e-5)
    assert loaded.preprocessing is not None
    assert loaded.preprocessing.mean == tuple(theirs.pretrained_cfg["mean"])
    assert loaded.preprocessing.crop_fraction == theirs.pretrained_cfg["crop_pct"]
    assert loaded.preprocessing.image_size == (224, 224)


def test_timms_weights_for_another_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm, "create_model", small_timm)
    pretrained = "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    with pytest.raises(ValueError, match=r"model\.new_head: .* has 1000 classes and the data 5"):
        load_model(ModelConfig(pretrained=pretrained), num_classes=5)
    with pytest.raises(ValueError, match=r"model\.num_classes: 7 is not valid: the data has 5 classes"):
        load_model(ModelConfig(pretrained=pretrained, new_head=True, num_classes=7), num_classes=5)
    loaded = load_model(ModelConfig(pretrained=pretrained, new_head=True, image_size=64), num_classes=5)
    assert loaded.model(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
    assert loaded.report is not None
    assert loaded.report.resized == {"positions.grid": "14×14 → 4×4"}


@pytest.mark.parametrize("error", [OSError("Network is\nunreachable"), RuntimeError("No pretrained weights")])
def test_without_a_network_one_line_says_what_to_do(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> nn.Module:
        raise error

    monkeypatch.setattr(timm, "create_model", fail)
    expected = (
        r"model\.pretrained: .*could not be fetched \((Network is unreachable|No pre.*)\); without a network, give"
    )
    with pytest.raises(ValueError, match=expected) as caught:
        create_model(pretrained="timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    assert "\n" not in str(caught.value)


def test_a_name_that_timm_does_not_have_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"timm has no model 'vit_tinny_patch16_224'; did you mean"):
        create_model(pretrained="timm:vit_tinny_patch16_224")
