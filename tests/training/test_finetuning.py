"""From a trained run to another task: sizes, heads, frozen backbones, teachers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from tests.training.tiny import last, tiny
from vit.config import ModelConfig, Preprocessing
from vit.hub import OpenedModel, create_model, load_model, open_model
from vit.models import VisionTransformer
from vit.settings import differences, read_run_config
from vit.tasks.classification.config import ClassificationRun
from vit.tasks.classification.training import Classification
from vit.tasks.image_weights import (
    check_normalization,
    decided_by_weights,
    following_weights,
    notes_of_unknown_normalization,
)
from vit.training.allowed_changes import as_begun, forbidden_changes
from vit.training.loop import train
from vit.training.session import open_session

BLANK = {"name": None, **dict.fromkeys(("image_size", "patch_size", "width", "depth", "num_heads"))}
"""The architecture of what is pretrained."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ClassificationRun]:
    run = tmp_path_factory.mktemp("source") / "run"
    config = tiny(train={"epochs": 1, "ema_decay": 0.9})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
        train(config, run)
    return run, config


def tuned(config: ClassificationRun, run: Path, **sections: Any) -> ClassificationRun:
    model = {**BLANK, "pretrained": str(run), **sections.pop("model", {})}
    return tiny(config, model=model, **sections)


@pytest.mark.usefixtures("no_figures")
def test_a_run_is_tuned_at_another_size(source: tuple[Path, ClassificationRun], tmp_path: Path) -> None:
    run, config = source
    summary = train(tuned(config, run, model={"image_size": 12}), tmp_path)
    assert summary["model"] == str(run)
    tensors = last(tmp_path).tensors["model"]
    assert last(run).tensors["model"]["positions.grid"].shape[1] == 4
    assert tensors["positions.grid"].shape[1] == 9
    assert last(tmp_path).state["task"]["preprocessing"]["image_size"] == [12, 12]


def test_it_starts_from_the_runs_average(source: tuple[Path, ClassificationRun], tmp_path: Path) -> None:
    run, config = source
    session = open_session(tuned(config, run), tmp_path)
    for name, tensor in session.unwrapped_model.state_dict().items():
        assert torch.equal(tensor, last(run).tensors["ema"][name]), name


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_only_the_head_of_a_frozen_backbone_moves(
    optimizer: str, source: tuple[Path, ClassificationRun], tmp_path: Path
) -> None:
    run, config = source
    train(tuned(config, run, model={"freeze_backbone": True}, optim={"name": optimizer}), tmp_path)
    before, after = last(run).tensors["ema"], last(tmp_path).tensors["model"]
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved == {"head.weight", "head.bias"}


@pytest.mark.usefixtures("no_figures")
def test_the_statistics_of_a_frozen_resnet_stay(tmp_path: Path) -> None:
    resnet, model = saved_resnet(tmp_path)
    train(tiny(model=model | {"freeze_backbone": True}, train={"epochs": 1}), tmp_path / "run")
    after = last(tmp_path / "run").tensors["model"]
    moved = {name for name, tensor in resnet.state_dict().items() if not torch.equal(tensor, after[name])}
    assert moved == {"fc.weight", "fc.bias"}


def saved_resnet(folder: Path) -> tuple[torch.nn.Module, dict[str, Any]]:
    """With the settings that open its file."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"name": "resnet18_cifar", "width": 8, "image_size": 8}
    resnet = create_model(**options, num_classes=3)
    save_file(resnet.state_dict(), folder / "resnet.safetensors")
    return resnet, BLANK | options | {"pretrained": str(folder / "resnet.safetensors")}


@pytest.mark.parametrize(("frozen", "steps"), [(True, [2, 2]), (False, [2, 1])])
def test_the_steps_of_a_frozen_resnet_do_not_depend_on_micro_batches(
    frozen: bool, steps: list[int], tmp_path: Path
) -> None:
    """Of 37 images, 3 are left for the last step: in two micro-batches, one of a single image."""
    _, model = saved_resnet(tmp_path)
    config = tiny(model=model | {"freeze_backbone": frozen}, data={"batch_size": 34})
    found = [tiny(config, train={"accumulation_steps": count}) for count in (1, 2)]
    assert [open_session(each, tmp_path).task.train_loader.steps_per_epoch for each in found] == steps
    single = tiny(config, data={"batch_size": 1})
    if frozen:
        assert open_session(single, tmp_path).task.train_loader.steps_per_epoch == 37
    else:
        with pytest.raises(ValueError, match=r"data\.batch_size: 1 is not valid: .* too few for a ResNet's BatchNorm"):
            open_session(single, tmp_path)


def test_other_classes_need_a_new_head(source: tuple[Path, ClassificationRun], tmp_path: Path) -> None:
    run, config = source
    fewer = {"fake_classes": 2}
    with pytest.raises(ValueError, match=r"model\.new_head: False is not valid: .* has 3 classes and the data 2"):
        open_session(tuned(config, run, data=fewer), tmp_path)
    session = open_session(tuned(config, run, data=fewer, model={"new_head": True}), tmp_path)
    assert isinstance(session.unwrapped_model, VisionTransformer)
    assert session.unwrapped_model.config.num_classes == 2


def test_as_many_classes_of_other_names_need_a_new_head(
    source: tuple[Path, ClassificationRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config = source
    rename(monkeypatch)
    with pytest.raises(ValueError, match=r"model\.new_head: False is not valid: the classes of .* are not the data's"):
        open_session(tuned(config, run), tmp_path)
    open_session(tuned(config, run, model={"new_head": True}), tmp_path)


def rename(monkeypatch: pytest.MonkeyPatch) -> None:
    from vit.data.sources import FakeSource

    construct = FakeSource.__init__

    def renamed(self: FakeSource, *arguments: Any) -> None:
        construct(self, *arguments)
        self.class_names = [name.upper() for name in self.class_names]

    monkeypatch.setattr(FakeSource, "__init__", renamed)


def test_other_pixels_than_the_weights_were_made_for_are_refused(
    source: tuple[Path, ClassificationRun], tmp_path: Path
) -> None:
    run, config = source
    with pytest.raises(ValueError, match=r"data\.mean: .* was trained with \(0\.5, 0\.5, 0\.5\)"):
        open_session(tuned(config, run, data={"mean": (0.1, 0.2, 0.3)}), tmp_path)


def test_what_a_name_left_open_may_be_set_to_the_same_when_a_run_continues(tmp_path: Path) -> None:
    """As an error about weights with a configuration of their own advises."""
    run = tmp_path / "run"
    train(tiny(train={"epochs": 1}), run)
    train(tiny(model={"norm_eps": 1e-6}, train={"epochs": 1}), run, resume=True)
    with pytest.raises(ValueError, match=r"model in state\.json was altered"):
        train(tiny(model={"norm_eps": 1e-5}, train={"epochs": 1}), run, resume=True)
    with pytest.raises(ValueError, match=r"model\.mlp_ratio: 3\.0 is not valid: the run .* was started with"):
        train(tiny(model={"mlp_ratio": 3.0}, train={"epochs": 1}), run, resume=True)


@pytest.mark.parametrize("pixels", [None, (0.5, 0.5, 0.5)])
def test_weights_of_blue_first_images_are_refused_whatever_is_set(
    pixels: tuple[float, ...] | None,
    source: tuple[Path, ClassificationRun],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def blue_first(*arguments: Any, **named: Any) -> OpenedModel[Any]:
        opened = load_model(*arguments, **named)
        return replace(opened, stated_preprocessing=replace(opened.preprocessing, channel_order="bgr"))

    monkeypatch.setattr("vit.tasks.images.load_model", blue_first)
    run, config = source
    with pytest.raises(ValueError, match="it takes bgr images, and training has rgb"):
        open_session(tuned(config, run, data={"mean": pixels, "std": pixels}), tmp_path)


def test_what_is_set_stays_and_the_rest_follows_the_weights(source: tuple[Path, ClassificationRun]) -> None:
    run, config = source
    loaded = load_model(ModelConfig(pretrained=str(run)))
    stated = Preprocessing(image_size=(8, 8), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    loaded = replace(loaded, stated_preprocessing=stated)
    given = tuned(config, run, data={"mean": (0.0, 0.0, 0.0), "std": None}, model={"image_size": (12, 12)})
    found = following_weights(given, loaded)
    assert (found.data.mean, found.data.std, found.model.image_size) == ((0.0, 0.0, 0.0), stated.std, (12, 12))
    assert decided_by_weights(given, loaded) == ["data.std"]
    silent = replace(loaded, stated_preprocessing=None)
    assert following_weights(given, silent).data.std == (0.5, 0.5, 0.5)
    assert notes_of_unknown_normalization(given, silent) == [
        f"{run} does not say how its images were normalised: data.mean and data.std are taken to be 0.5"
    ]
    assert notes_of_unknown_normalization(given, loaded) == []


@pytest.mark.usefixtures("no_figures")
def test_a_run_follows_its_weights_writes_that_down_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights' own size is 8, and their source prepares images of 12 with a mean and a spread of its own."""
    source = create_source(tmp_path / "source")
    unset = tuned(tiny(), source, data={"mean": None, "std": None}, train={"epochs": 1})
    session = open_session(unset, tmp_path / "not begun")
    assert isinstance(session.task, Classification)
    stated = Preprocessing(image_size=(12, 12), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), interpolation="bicubic")
    assert session.task.preprocessing == stated
    given = tuned(
        tiny(),
        source,
        data={"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)},
        model={"image_size": (12, 12)},
        train={"epochs": 1},
    )
    same = open_session(given, tmp_path / "not begun").unwrapped_model.state_dict()
    for name, tensor in session.unwrapped_model.state_dict().items():
        assert torch.equal(tensor, same[name]), name
    train(unset, tmp_path / "run")
    kept, origins = read_run_config(tmp_path / "run" / "config.yaml")
    assert differences(kept, given).keys() <= {"output_dir"}
    assert {origins[name] for name in ("data.mean", "data.std", "model.image_size")} == {"pretrained weights"}
    train(unset, tmp_path / "run", resume=True)
    assert forbidden_changes(kept, unset, origins) == {}
    other = dict.fromkeys(origins, "command line")
    assert set(forbidden_changes(kept, unset, other)) == {"data.mean", "data.std", "model.image_size"}
    monkeypatch.setattr("vit.hub.pretrained._stated_size", lambda _: None)  # as before sizes were followed
    older = tuned(tiny(), source, data={"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}, train={"epochs": 1})
    train(older, tmp_path / "older")
    monkeypatch.undo()
    checkpoint = last(tmp_path / "older")
    begun = as_begun(older, tmp_path / "older")
    assert isinstance(begun, ClassificationRun)
    assert begun.model.image_size == (8, 8)
    assert checkpoint.state["task"]["model"]["image_size"] == [8, 8]


def create_source(folder: Path) -> Path:
    """A folder of transformers' with a processor of another size than the model's positions."""
    folder.mkdir()
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        id2label={0: "pattern 0", 1: "pattern 1", 2: "pattern 2"},
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    stated = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 12, "width": 12}}
    stated |= {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "resample": 3}
    stated |= {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (folder / "preprocessor_config.json").write_text(json.dumps(stated))
    return folder


def test_a_run_continues_after_its_pretrained_weights_were_moved(
    source: tuple[Path, ClassificationRun], tmp_path: Path
) -> None:
    weights, config = source
    shutil.copytree(weights, tmp_path / "weights")
    config = tuned(config, tmp_path / "weights")
    train(config, tmp_path / "run")
    (tmp_path / "weights").rename(tmp_path / "archive")
    longer = replace(config, train=replace(config.train, epochs=2))
    with pytest.raises(ValueError, match=r"model\.pretrained: .*weights"):
        train(longer, tmp_path / "run", resume=True)
    other = replace(longer, model=replace(longer.model, pretrained=str(weights)))
    (tmp_path / "weights").mkdir()
    with pytest.raises(ValueError, match=r"the run in .* was started with .* and model\.pretrained would change"):
        train(other, tmp_path / "run", resume=True)
    (tmp_path / "weights").rmdir()
    moved = replace(longer, model=replace(longer.model, pretrained=str(tmp_path / "archive")))
    assert train(moved, tmp_path / "run", resume=True)["epochs"] == 2


def test_pixels_that_cannot_be_compared_are_said(caplog: pytest.LogCaptureFixture) -> None:
    loaded = replace(open_model("vit_tiny_patch16_32"), stated_preprocessing=None)
    check_normalization(Preprocessing(image_size=(32, 32)), loaded, "hf:a")
    assert not caplog.messages, "nothing is stated"
    check_normalization(Preprocessing(image_size=(32, 32)), replace(loaded, unsupported_preprocessing="why"), "hf:a")
    assert caplog.messages == ["data.mean and data.std are not compared with those of hf:a: why"]


def test_a_setting_without_effect_on_the_pretrained_model_is_refused(
    source: tuple[Path, ClassificationRun], tmp_path: Path
) -> None:
    run, config = source
    with pytest.raises(ValueError, match=r"model\.num_classes: 5 is not valid: the data has 3 classes"):
        open_session(tuned(config, run, model={"num_classes": 5}), tmp_path)
    with pytest.raises(ValueError, match=r"model\.pretrained: .*blocks\.1\."):
        open_session(tuned(config, run, model={"depth": 1}), tmp_path)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_teacher_teaches(kind: str, source: tuple[Path, ClassificationRun], tmp_path: Path) -> None:
    """Two students from the same start: one hears the teacher, and only its distillation head."""
    run, config = source
    student = {"distillation_token": True, "depth": 1}
    distill = {"teacher": str(run), "kind": kind, "weight": 1.0}
    config = tiny(config, model=student, train={"epochs": 1}, distill=distill, optim={"weight_decay": 0.0})
    start = {
        name: tensor.clone() for name, tensor in open_session(config, tmp_path).unwrapped_model.state_dict().items()
    }
    train(config, tmp_path / "run")
    after = last(tmp_path / "run").tensors["model"]
    assert not torch.equal(start["distillation_head.weight"], after["distillation_head.weight"])
    assert torch.equal(start["head.weight"], after["head.weight"])


TEACHERS = {
    "other number of classes": ({"data": {"fake_classes": 2}}, r"it has 3 classes and the data 2"),
    "other pixels": ({"data": {"std": (0.2, 0.2, 0.2)}}, r"data\.std: .* was trained with"),
}


@pytest.mark.parametrize(("changes", "expected"), TEACHERS.values(), ids=list(TEACHERS))
def test_a_teacher_of_something_else_is_refused(
    changes: dict[str, Any], expected: str, source: tuple[Path, ClassificationRun], tmp_path: Path
) -> None:
    run, config = source
    with pytest.raises(ValueError, match=expected):
        open_session(tiny(config, distill={"teacher": str(run)}, **changes), tmp_path)


def test_a_teacher_of_other_names_is_refused(
    source: tuple[Path, ClassificationRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config = source
    rename(monkeypatch)
    with pytest.raises(ValueError, match=r"distill\.teacher: .*its classes are not the data's"):
        open_session(tiny(config, distill={"teacher": str(run)}), tmp_path)


def test_a_teacher_that_is_not_there_is_named_as_the_teacher(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"distill\.teacher: .*absent"):
        open_session(tiny(distill={"teacher": str(tmp_path / "absent")}), tmp_path)
    save_file({"a": torch.zeros(1)}, tmp_path / "file.safetensors")
    with pytest.raises(ValueError, match=r"distill\.teacher: .* does not tell it; its tensors are in no known layout"):
        open_session(tiny(distill={"teacher": str(tmp_path / "file.safetensors")}), tmp_path)


def test_settings_that_a_resnet_cannot_honour_are_refused(tmp_path: Path) -> None:
    resnet = BLANK | {"name": "resnet18_cifar", "width": 8, "image_size": 8}
    refused = r"train\.gradient_checkpointing: True is not valid: only the blocks of a VisionTransformer"
    with pytest.raises(ValueError, match=refused):
        open_session(tiny(model=resnet, train={"gradient_checkpointing": True}), tmp_path)


def test_gradient_checkpointing_changes_no_gradient(tmp_path: Path) -> None:
    from tests.training.test_loop import assert_close, gradients
    from tests.training.tiny import RANDOM

    plain = gradients(tiny(**RANDOM), tmp_path)
    assert_close(gradients(tiny(**RANDOM, train={"gradient_checkpointing": True}), tmp_path), plain)


def test_half_precision_needs_one_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Half:
        mixed_precision = "fp16"

    monkeypatch.setattr("vit.training.session.make_accelerator", lambda *_: Half())
    with pytest.raises(ValueError, match=r"train\.precision: 'fp16' is not valid: .* optim\.name 'muon' needs two"):
        open_session(tiny(optim={"name": "muon"}), tmp_path)


def test_a_model_of_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.name: it is missing"):
        open_session(tiny(model=BLANK), tmp_path)
    assert ModelConfig().name is None
