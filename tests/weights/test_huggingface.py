"""Hugging Face's folders: the same outputs as their own models, in both directions; the rest is refused by name."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.weights.hf_models import CASES, LARGE, MLP, Case, prove_folder, saved
from vit.config import ModelConfig, ViTConfig
from vit.hub import create_model, load_model, open_model
from vit.models import VisionTransformer, build_model
from vit.weights import huggingface
from vit.weights.huggingface import FAMILIES, read_folder, write_folder

transformers = pytest.importorskip("transformers", reason="needs the extra 'text'")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
VIT = CASES["ViTForImageClassification"]


def check(case: Case, folder: Path) -> None:
    row, loaded, back = prove_folder(case, folder)
    assert row.difference is not None
    assert row.difference <= 1e-5
    assert back <= 1e-5
    assert row.exact
    assert loaded.report is not None
    assert set(loaded.report.loaded) == set(loaded.model.state_dict())
    dropped = len(loaded.report.dropped)
    assert dropped == case.dropped if case.dropped >= 0 else dropped > 1
    for field, value in case.ours.items():
        assert getattr(loaded.model.config, field) == value, field


@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_the_librarys_in_both_directions(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_random_weights_are_the_librarys(name: str, tmp_path: Path) -> None:
    """Drawn by transformers, whose modules have other names than its files."""
    saved(CASES[name], tmp_path)
    (tmp_path / "model.safetensors").unlink()
    ours = open_model(tmp_path, random_weights=True, implementation="ours")
    theirs = open_model(tmp_path, random_weights=True, implementation="theirs")
    assert isinstance(ours.model, VisionTransformer)
    images = torch.randn(2, 3, *ours.model.config.image_size)
    torch.testing.assert_close(ours.model(images), theirs.model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_the_librarys_default_sizes(name: str, tmp_path: Path) -> None:
    check(LARGE[name], tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ViT with seven classes."""
    path = tmp_path_factory.mktemp("vit")
    saved(VIT, path)
    return path


def rewritten(folder: Path, place: Path, **changes: Any) -> str:
    """A copy with changes in `config.json`; None removes the key."""
    content = json.loads((folder / "config.json").read_text()) | changes
    kept = {key: value for key, value in content.items() if value is not None}
    (place / "config.json").write_text(json.dumps(kept))
    (place / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return str(place)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another model": ({"model_type": "swin"}, r"model_type 'swin' is not supported; supported are aimv2, .*vit_msn$"),
    "text": ({"model_type": "bert"}, r"model_type 'bert' is not supported"),
    "no model": ({"model_type": None}, r"model_type: None is not valid: it must be a model's name"),
    "activation": ({"hidden_act": "relu"}, r"hidden_act: 'relu' .*gelu_pytorch_tanh, quick_gelu"),
    "channels": ({"num_channels": 1}, r"num_channels: 1 is not valid: only 3 is supported"),
    "pooler": ({"pooler_act": "relu"}, r"pooler_act: 'relu'"),
    "depth": ({"num_hidden_layers": 3}, r"does not have blocks\.2\."),
    "width": ({"intermediate_size": 99}, r"has shape \(100,\), the model's is \(99,\)"),
    "registers": ({"model_type": "dinov2_with_registers", "mlp_ratio": 2}, r"does not have register_tokens"),
}


@pytest.mark.parametrize(("changes", "line"), REFUSED.values(), ids=list(REFUSED))
def test_unsupported_models_are_refused_by_name(
    changes: dict[str, Any], line: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"model\.pretrained: .*{line}") as caught:
        create_model(pretrained=rewritten(folder, tmp_path, **changes))
    assert "\n" not in str(caught.value)


def test_a_folder_without_weights_or_with_others_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ValueError, match=r"has none of model\.safetensors, model\.safetensors\.index\.json, pytorch"):
        create_model(pretrained=str(tmp_path))
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"tensors such as a do not have the names of vit"):
        create_model(pretrained=str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json"):
        create_model(pretrained=str(tmp_path))


def test_shards_and_torch_files_are_read(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for shard, own in halves.items():
        save_file({name: tensors[name] for name in own}, tmp_path / shard)
    index = {"weight_map": {name: shard for shard, own in halves.items() for name in own}}
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_folder(tmp_path).tensors.keys() == tensors.keys()
    (tmp_path / "model.safetensors.index.json").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert read_folder(tmp_path).tensors.keys() == tensors.keys()


def test_missing_nested_keys_have_the_librarys_defaults() -> None:
    defaults = [getattr(transformers, f"{name}VisionConfig")() for name in ("CLIP", "Siglip", "Siglip2", "Aimv2")]
    nested = (family for family in FAMILIES if family.nested_types)
    for family, theirs in zip(nested, defaults, strict=True):
        assert theirs.model_type == family.model_type
        absent = family.read({"model_type": family.nested_types[0], "vision_config": {}}, {}, "config.json")
        assert absent == family.read(theirs.to_dict(), {}, "config.json")


def test_a_new_head_another_size_and_the_names_of_classes(folder: Path, tmp_path: Path) -> None:
    names = {str(number): f"class {number}" for number in range(7)}
    path = rewritten(folder, tmp_path, id2label=names)
    loaded = load_model(ModelConfig(pretrained=path, image_size=(48, 32)))
    assert loaded.class_names == list(names.values())
    assert loaded.report is not None
    assert loaded.report.resized == {"positions.grid": "4×4 → 6×4"}
    assert loaded.model(torch.zeros(1, 3, 48, 32)).shape == (1, 7)
    with pytest.raises(ValueError, match=r"model\.new_head: False is not valid: .* has 7 classes and the data 5"):
        load_model(ModelConfig(pretrained=path), num_classes=5)
    fresh = load_model(ModelConfig(pretrained=path, new_head=True), num_classes=5)
    assert fresh.report is not None
    assert sorted(fresh.report.replaced) == ["head.bias", "head.weight"]
    assert load_model(ModelConfig(pretrained=str(folder))).class_names == []  # LABEL_0 says nothing


def test_a_name_must_agree_with_the_configuration_and_a_file_has_none(folder: Path) -> None:
    options: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "num_heads": 4}
    options |= {"mlp_ratio": 100 / 48, "num_classes": 7}
    with pytest.raises(ValueError, match=r"^model\.norm_eps: 1e-06 is not valid: .* has 1e-12, which no tensor tells"):
        create_model("vit", pretrained=str(folder), **options)
    create_model("vit", pretrained=str(folder), norm_eps=1e-6, **options)
    create_model("vit", pretrained=str(folder / "model.safetensors"), **options)


@torch.no_grad()
def test_a_name_on_the_hub_is_fetched_with_its_preprocessing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    path = Path(rewritten(folder, tmp_path))
    settings = {"do_resize": True, "size": {"height": 32, "width": 32}, "resample": 3, "do_normalize": False}
    (path / "preprocessor_config.json").write_text(json.dumps(settings))

    def fetch(name: str, file: str) -> str:
        if not (path / file).is_file():
            raise huggingface_hub.errors.EntryNotFoundError(f"{name} has no {file}")
        return str(path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    loaded = load_model(ModelConfig(pretrained="hf:someone/vit"))
    assert loaded.preprocessing is not None
    assert loaded.preprocessing.squash
    assert loaded.report is not None
    assert loaded.report.source == "hf:someone/vit"
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"'someone/vit' could not be fetched .*without a network, give"):
        load_model(ModelConfig(pretrained="hf:someone/vit"))


NO_SUCH_MODEL: dict[str, tuple[dict[str, Any], str]] = {
    "pooling": ({"pooling": "gap"}, r"for its vit, model\.pooling must be 'cls', not 'gap'"),
    "norm": ({"pooling": "gap", "final_norm": "pooled"}, r"for its vit, model\.(pooling|final_norm) must be"),
    "layer scale": ({"layer_scale": 0.1, "qk_norm": True}, r"for its dinov2, model\.qk_norm must be False"),
    "DINOv2's head": ({"layer_scale": 0.1}, r"for its dinov2, model\.pooling must be 'cls_gap', not 'cls'"),
    "CLIP with a head": ({"pre_norm": True}, r"for its clip_vision_model, model\.head_bias must be False"),
    "gates": ({"feedforward": "swiglu"}, r"for its vit, model\.feedforward 'swiglu'"),
    "two tokens without a head": (
        {"distillation_token": True, "num_classes": 0},
        r"for its deit, model\.distillation_head must be False without a head",
    ),
    "not square": (
        {"pre_norm": True, "head_bias": False, "image_size": (32, 16)},
        r"for its clip_vision_model, model\.image_size \(32, 16\) is not a square",
    ),
}


@pytest.mark.parametrize(("changes", "line"), NO_SUCH_MODEL.values(), ids=list(NO_SUCH_MODEL))
def test_unsupported_fields_are_refused_by_name(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"image_size": (32, 32), "width": 48, "depth": 1, "num_heads": 3, "num_classes": 7}
    config = ViTConfig(**(options | changes))
    with pytest.raises(ValueError, match=rf"--to: Hugging Face has no such model; {line}"):
        write_folder(tmp_path, config, build_model(config).state_dict())


def test_a_bias_of_dinov3s_keys_is_refused(tmp_path: Path) -> None:
    """transformers' keys have none, and a model that was trained further here has one."""
    saved(CASES["DINOv3ViTModel"], tmp_path)
    model = create_model(pretrained=str(tmp_path))
    write_folder(tmp_path / "back", model.config, model.state_dict())  # type: ignore[arg-type]
    with torch.no_grad():
        model.state_dict()["blocks.1.attention.qkv.bias"][48:96] += 0.1
    with pytest.raises(ValueError, match=r"blocks\.1\.attention\.qkv\.bias .* the keys have a bias, which is not 0"):
        write_folder(tmp_path / "back", model.config, model.state_dict())  # type: ignore[arg-type]


def test_nothing_is_left_of_a_folder_that_could_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    config = ViTConfig(image_size=(32, 32), width=48, depth=1, num_heads=3, num_classes=7)
    monkeypatch.setattr(huggingface, "write_safetensors", fail)
    with pytest.raises(OSError, match="No space left"):
        write_folder(tmp_path, config, build_model(config).state_dict())
    assert [*tmp_path.iterdir()] == []


@torch.no_grad()
@pytest.mark.parametrize("tokens", [{}, {"distillation_token": True, "distillation_head": False}])
def test_a_pooler_of_another_width_is_written(tokens: dict[str, Any], tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"image_size": (32, 32), "width": 48, "depth": 1, "num_heads": 3, "num_classes": 0}
    model = build_model(ViTConfig(**sizes, **tokens, representation_width=20, norm_eps=1e-12)).eval()
    write_folder(tmp_path, model.config, model.state_dict())  # type: ignore[arg-type]
    images = torch.randn(2, 3, 32, 32)
    theirs = transformers.AutoModel.from_pretrained(tmp_path)(images).pooler_output
    torch.testing.assert_close(theirs, model(images), rtol=1e-4, atol=1e-5)


def test_written_folders_are_read_back_bitwise(tmp_path: Path) -> None:
    config = ViTConfig(
        image_size=(32, 32), width=48, depth=1, num_heads=3, num_classes=7, position_resize="bicubic", init="normal"
    )
    model = build_model(config)
    write_folder(tmp_path, config, model.state_dict())
    again = load_model(ModelConfig(pretrained=str(tmp_path))).model
    assert again.config == config
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert MLP["hidden_size"] == json.loads((tmp_path / "config.json").read_text())["hidden_size"]
