"""Repositories in timm's format: timm's own model gives our logits, and what comes back is the whole model."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

from tests.deployment.test_export import opened, small_vit
from tests.faults.malformed.run_folders import copy_run
from vit import open_model
from vit.cli import main
from vit.config import ModelConfig, Preprocessing
from vit.deployment.errors import Unfaithful
from vit.deployment.repository import evaluated_run, write_repository
from vit.hub import OpenedModel, load_model
from vit.models import VisionTransformer
from vit.settings import resolve_run

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "pooled": {"pooling": "gap", "class_token": False, "final_norm": "pooled"},
    "registers": {"num_registers": 2, "positions_on_registers": True, "layer_scale": 0.1, "qk_norm": True},
    "distilled": {"distillation_token": True},
    "map": {"pooling": "map", "class_token": False, "feedforward": "gelu_tanh"},
    "pre-norm": {"pre_norm": True, "feedforward": "quick_gelu", "qkv_bias": False},
    "no positions": {"positions": "none"},
}
PREPARED = Preprocessing(
    image_size=(16, 24),
    crop_fraction=0.9,
    squash=True,
    interpolation="bilinear",
    mean=(0.1, 0.2, 0.3),
    std=(0.7, 0.8, 0.9),
)


def model_of(**options: Any) -> OpenedModel:
    torch.manual_seed(0)
    return replace(opened(small_vit(**options)), stated_preprocessing=PREPARED)


@pytest.mark.parametrize("options", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_timm_opens_the_folder_and_gives_the_same_logits(tmp_path: Path, options: dict[str, Any]) -> None:
    model = model_of(**options)
    assert write_repository(model, tmp_path / "repo", "me/it") < 1e-5
    theirs = timm.create_model(f"local-dir:{tmp_path / 'repo'}", pretrained=True).eval()
    images = torch.randn(3, 3, 16, 24)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(images), model.model(images), atol=1e-4, rtol=1e-4)
    data = timm.data.resolve_model_data_config(theirs)
    assert (tuple(data["mean"]), tuple(data["std"])) == (PREPARED.mean, PREPARED.std)
    assert (data["crop_pct"], data["crop_mode"], data["interpolation"]) == (0.9, "squash", "bilinear")
    assert data["input_size"] == (3, 16, 24)


def test_what_comes_back_is_the_whole_model(tmp_path: Path) -> None:
    model = model_of(position_resize="bilinear_corners", stochastic_depth_rate=0.25)
    write_repository(model, tmp_path / "repo", "me/it")
    for source in (str(tmp_path / "repo"), f"hf:{tmp_path / 'repo'}", f"hf-hub:{tmp_path / 'repo'}"):
        back = open_model(source)
        assert back.is_ours
        assert back.model.config == model.model.config
        assert all(torch.equal(theirs, ours) for theirs, ours in zip(*map(tensors_of, (back, model)), strict=True))
        assert back.preprocessing == PREPARED
        assert back.class_names == ["a", "b", "c"]
        assert back.provenance == model.provenance
    trained_on = load_model(ModelConfig(pretrained=str(tmp_path / "repo"), new_head=True), num_classes=5).model
    assert trained_on.config == replace(model.model.config, num_classes=5)  # type: ignore[type-var]


def test_images_of_another_size_than_the_positions(tmp_path: Path) -> None:
    model = model_of()
    height, width = PREPARED.image_size
    size = (2 * height, 2 * width)
    write_repository(
        replace(model, stated_preprocessing=replace(PREPARED, image_size=size)), tmp_path / "repo", "me/it"
    )
    back = open_model(str(tmp_path / "repo"))
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(back.model(images), model.model(images))
    assert isinstance(model.model, VisionTransformer)
    assert model.model.config.image_size == PREPARED.image_size, "the model that was given stays as it is"


def test_an_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> nn.Module:
        raise AssertionError

    monkeypatch.setattr(timm, "create_model", broken)
    with pytest.raises(AssertionError):
        write_repository(model_of(), tmp_path / "repo", "me/it")
    assert not (tmp_path / "repo").exists()


def tensors_of(model: OpenedModel) -> list[torch.Tensor]:
    return [tensor for _, tensor in sorted(model.model.state_dict().items())]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": "rope"}, r"timm has no model with model\.positions 'rope'"),
        ({"feedforward": "swiglu"}, r"timm's configuration has no name for model\.feedforward 'swiglu'"),
        ({"norm_eps": 1e-5}, r"no name for model\.norm_eps 1e-05; it has 1e-06"),
    ],
)
def test_what_timm_has_no_words_for(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_repository(model_of(**changes), tmp_path / "repo", "me/it")
    assert not (tmp_path / "repo").exists()


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"multilabel": True}, "me/it", "the thresholds of its labels have no place in timm's format"),
        ({"model": nn.Flatten()}, "me/it", "only Vision Transformers are written for timm"),
        (
            {"stated_preprocessing": replace(PREPARED, channel_order="bgr")},
            "me/it",
            r"no images with data\.channel_order",
        ),
        ({}, "it", "NAME: 'it' is not valid: a repository is named OWNER/MODEL"),
        ({}, "me/i t", "a repository is named OWNER/MODEL"),
    ],
)
def test_refusals(tmp_path: Path, changes: dict[str, Any], name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        write_repository(replace(model_of(), **changes), tmp_path / "repo", name)
    assert not (tmp_path / "repo").exists()


def test_a_folder_with_files_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "note.txt").touch()
    with pytest.raises(ValueError, match="it holds files already; name a new folder"):
        write_repository(model_of(), tmp_path, "me/it")


def test_other_logits_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    build = timm.create_model

    def damaged(*arguments: Any, **options: Any) -> nn.Module:
        theirs: nn.Module = build(*arguments, **options)
        nn.init.normal_(theirs.get_parameter("norm.weight"))
        return theirs

    monkeypatch.setattr(timm, "create_model", damaged)
    with pytest.raises(Unfaithful, match="timm's model gives other logits"):
        write_repository(model, tmp_path / "repo", "me/it")
    assert not (tmp_path / "repo").exists()


def test_altered_settings_of_ours_are_one_line(tmp_path: Path) -> None:
    write_repository(model_of(), tmp_path / "repo", "me/it")
    file = tmp_path / "repo" / "config.json"
    content = json.loads(file.read_text())
    altered: list[Any] = [{}, None, {"model": {"kind": "vit", "widht": 3}}, {"model": []}]
    for own in altered:
        file.write_text(json.dumps(content | {"vit": own}))
        with pytest.raises(ValueError, match=r"config\.json: 'vit' was altered: ") as caught:
            open_model(str(tmp_path / "repo"))
        assert "\n" not in str(caught.value)


def test_the_card_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = copy_run(tmp_path)
    (run / "README.md").write_text("# vit on fake\n\n![curves](figures/curves.png)\n")
    words = ["push", "run", "me/it", "--folder", "repo", "--dry_run", "--license", "mit"]
    assert main(words) == 0
    card = Path("repo/README.md").read_text()
    head = card.split("---")[1]
    assert 'license: "mit"' in head
    top1 = json.loads((run / "summary.json").read_text())["test.top1"]
    assert json.dumps(top1) in head
    assert "## The training run: vit on fake\n" in card
    assert "figures/curves.png" not in card, "the picture is not there"
    (run / "figures").mkdir(exist_ok=True)
    (run / "figures" / "curves.png").write_bytes(b"png")
    assert main([*words[:4], "again", *words[5:]]) == 0
    assert Path("again/figures/curves.png").is_file()
    assert "](figures/curves.png)" in Path("again/README.md").read_text()


def test_what_is_not_uploaded_is_not_private(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["push", "vit_tiny_patch16_224", "me/it", "--folder", str(tmp_path / "x"), "--dry_run", "--private"]
    assert main(words) == 2
    assert "--private: True is not valid: nothing is uploaded with --dry_run" in capsys.readouterr().err


def test_the_record_of_images_of_another_size_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = copy_run(tmp_path)
    (run / "README.md").write_text("# vit on fake\n\nEvaluate again with\n\n    vit eval run\n")
    assert main(["push", "run", "me/it", "--folder", "whole", "--dry_run"]) == 0
    assert capsys.readouterr().err == ""
    card = Path("whole/README.md").read_text()
    assert "model-index" in card
    assert "vit eval run" not in card, "a folder of the author's"
    assert "vit train --config config.yaml" in card
    settings = Path("whole/config.yaml").read_text()
    assert "output_dir" not in settings
    pushed, kept = (resolve_run(path).config for path in (Path("whole/config.yaml"), run / "config.yaml"))
    assert pushed == kept
    assert main(["push", "run", "me/it", "--folder", "other", "--dry_run", "--image_size", "24"]) == 0
    assert "the card holds no accuracy" in capsys.readouterr().err
    card = Path("other/README.md").read_text()
    assert "model-index" not in card
    assert "vit on fake" not in card
    assert "its accuracy was not measured" in card


def test_the_record_of_a_run_is_of_its_own_weights(tmp_path: Path) -> None:
    run = copy_run(tmp_path)
    given = open_model(str(run))
    assert evaluated_run(given) == run
    assert given.checkpoint is not None
    assert evaluated_run(open_model(str(given.checkpoint))) == run
    other = deepcopy(given.model)
    next(other.parameters()).data.mul_(1.001)
    assert evaluated_run(replace(given, model=other)) is None
    assert evaluated_run(model_of()) is None, "no run at all"
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"best.step": summary["best.step"] + 1}))
    assert evaluated_run(given) is None, "finished, continued and stopped: it tells of the weights before"


class Hub:
    """huggingface_hub's `HfApi`, as far as it is called."""

    calls: list[tuple[str, dict[str, Any]]]
    error: Exception | None

    def create_repo(self, name: str, **options: Any) -> str:
        self.calls.append((name, options))
        return f"https://hub/{name}"

    def upload_folder(self, **options: Any) -> None:
        if self.error:
            raise self.error
        self.calls.append(
            ("files", {**options, "files": sorted(path.name for path in options["folder_path"].iterdir())})
        )


def test_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    Hub.calls, Hub.error = [], None
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    copy_run(tmp_path)
    assert main(["push", "run", "me/it", "--private"]) == 0
    assert Hub.calls[0] == ("me/it", {"private": True, "exist_ok": True})
    assert Hub.calls[1][1]["files"] == ["README.md", "config.json", "config.yaml", "model.safetensors"]
    assert "uploaded: https://hub/me/it" in capsys.readouterr().out
    assert not list(temporary.iterdir())
    assert main(["push", "resnet18", "me/it", "--random_weights"]) == 2, "no ResNets in timm's format"
    assert not list(temporary.iterdir())
    capsys.readouterr()
    assert main(["push", "vit_tiny_patch16_224", "me/it", "--random_weights"]) == 0
    assert capsys.readouterr().err.startswith("vit_tiny_patch16_224: random weights")
    assert not list(temporary.iterdir())
    Hub.error = RuntimeError("401\nno token")
    assert main(["push", "run", "me/it", "--folder", "kept"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "me/it could not be uploaded (401 no token); its files are in kept; `hf auth login` gives" in line
    assert Path("kept/config.json").is_file()
    assert main(["push", "run", "me/it", "--dry_run"]) == 2
