"""A model by name, with weights from where the user says: a run, a file, a library's hub. Joins models, weights, runs.

Knows nothing of data sets.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vit.config import (
    KernelConfig,
    ModelConfig,
    Preprocessing,
    ResNetConfig,
    TranslatorConfig,
    ViTConfig,
    check,
    nearest,
)
from vit.models import Classifier, build_model, config_from_dict, resolve
from vit.models.kernel_regressor import KernelRegressor
from vit.models.text_encoder import TextEncoder
from vit.models.translator import Translator, build_translator
from vit.models.zoo import agreed_classes, architecture_overrides, is_known
from vit.runs import find_checkpoint, holds_checkpoints, read_checkpoint
from vit.weights.bert import has_pooler, load_bert, read_bert_config
from vit.weights.files import read_tensors
from vit.weights.hf_download import fetch_folder
from vit.weights.loader import load_weights
from vit.weights.report import LoadReport
from vit.weights.sources import Source, open_source
from vit.weights.timm_models import is_timm_vit, timm_config


@dataclass(frozen=True)
class LoadedModel:
    """A model and what came with its weights."""

    model: Classifier
    preprocessing: Preprocessing | None = None
    class_names: list[str] | None = None
    report: LoadReport | None = None


@dataclass(frozen=True)
class LoadedTextEncoder:
    """A text encoder and what became of the tensors that it was loaded from."""

    model: TextEncoder
    report: LoadReport


def create_model(name: str | None = None, *, pretrained: str | None = None, **options: Any) -> Classifier:
    """A model by its name in `list_models()`, as `create_model("vit_base_patch16_224", num_classes=10, image_size=64)`.

    The names of timm's plain Vision Transformers are understood too. `pretrained` is a run folder, a weights file, a
    folder of timm's or Hugging Face's, `timm:NAME`, `torchvision:NAME` or `hf:NAME`; without a name, the architecture
    is its own. `options` are the fields of `ModelConfig`. ValueError for an unknown name or option and for weights that
    do not fit.
    """
    known = [item.name for item in fields(ModelConfig)]
    for option in options:
        if option not in known:
            raise ValueError(f"model.{option}: there is no such option; {nearest(option, known)}")
    return load_model(ModelConfig(name=name, pretrained=pretrained, **options)).model


def load_model(config: ModelConfig, num_classes: int | None = None) -> LoadedModel:
    """The configured model with its pretrained weights, if any. `num_classes` is the data's.

    ValueError when the weights have other classes than the data and `model.new_head` is false.
    """
    if config.pretrained is None:
        return LoadedModel(build_model(_named(config, num_classes)))
    if holds_checkpoints(Path(config.pretrained)):
        return _from_run(config, Path(config.pretrained), num_classes)
    return _from_source(config, open_source(config.pretrained), num_classes)


def load_run(path: Path, select: str = "best", weights: str = "auto") -> tuple[LoadedModel, dict[str, Any]]:
    """A run's classifier as it was trained, and the state of its checkpoint.

    `select`: best or last. `weights`: raw, ema, or auto (the average where the run kept one). ValueError where there is
    no such thing, and for a run that trained something else.
    """
    tensors, state = _read_run(path, select, weights)
    task = state["task"]
    _check_kind(path, task["model"]["kind"], ("vit", "resnet"))
    model = build_model(config_from_dict(task["model"]))
    model.load_state_dict(tensors)
    return LoadedModel(model, preprocessing_from(task), task["class_names"]), state


def load_translator(path: Path, select: str = "best", weights: str = "auto") -> tuple[Translator, dict[str, Any]]:
    """A run's translator as it was trained, and the state of its checkpoint; otherwise as `load_run`."""
    tensors, state = _read_run(path, select, weights)
    settings = dict(state["task"]["model"])
    _check_kind(path, settings.pop("kind"), ("translator",))
    source, target = state["task"]["vocabulary_sizes"]
    model = build_translator(TranslatorConfig(**settings), source_vocabulary=source, target_vocabulary=target)
    model.load_state_dict(tensors)
    return model, state


def load_regressor(path: Path, select: str = "best", weights: str = "auto") -> tuple[KernelRegressor, dict[str, Any]]:
    """A run's kernel regression with the points it was trained on, and its checkpoint's state; else as `load_run`."""
    tensors, state = _read_run(path, select, weights)
    settings = dict(state["task"]["model"])
    _check_kind(path, settings.pop("kind"), ("kernel_regression",))
    model = KernelRegressor(tensors["kernel.keys"], tensors["kernel.values"], KernelConfig(**settings))
    model.load_state_dict(tensors)
    return model, state


def _read_run(path: Path, select: str, weights: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    checkpoint = read_checkpoint(find_checkpoint(path, select), ["model", "ema"])
    if weights == "ema" and "ema" not in checkpoint.tensors:
        raise ValueError(f"weights: 'ema' is not valid: {str(path)!r} kept no average (train.ema_decay was not set)")
    averaged = "ema" in checkpoint.tensors and weights != "raw"
    return checkpoint.tensors["ema" if averaged else "model"], checkpoint.state


def _check_kind(path: Path, kind: str, wanted: tuple[str, ...]) -> None:
    if kind not in wanted:
        doors = {"vit": "vit predict", "resnet": "vit predict", "translator": "vit translate"}
        rule = f"it holds a model of kind {kind!r}; for that there is `{doors.get(kind, 'vit eval')}`"
        raise ValueError(f"--checkpoint: {str(path)!r} is not valid here: {rule}")


def preprocessing_from(state: dict[str, Any]) -> Preprocessing:
    """The preprocessing that a checkpoint's state holds."""
    stored = state["preprocessing"]
    values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in stored.items()}
    return Preprocessing(**values)


def _from_run(config: ModelConfig, path: Path, num_classes: int | None) -> LoadedModel:
    """Another run's weights; its architecture too, changed by the fields that are set, unless a name is given."""
    loaded, state = load_run(path)
    source = loaded.model.config
    target = resolve(config, num_classes) if config.name else _changed(source, config, num_classes)
    model = build_model(target)
    grid = config.pretrained_grid or (source.grid_size if isinstance(source, ViTConfig) else None)
    tensors = loaded.model.state_dict()
    report = load_weights(model, tensors, str(path), source_grid=grid, new_head=config.new_head)
    return LoadedModel(model, preprocessing_from(state["task"]), loaded.class_names, report)


def _changed(
    source: ViTConfig | ResNetConfig, config: ModelConfig, num_classes: int | None
) -> ViTConfig | ResNetConfig:
    overrides = architecture_overrides(config)
    known = {item.name for item in fields(source)}
    for name, value in overrides.items():
        check(
            name in known, f"model.{name}", value, f"it has no effect on the model {config.name or config.pretrained}"
        )
    return replace(source, **(overrides | agreed_classes(config.num_classes, num_classes)))


def _from_source(config: ModelConfig, source: Source, num_classes: int | None) -> LoadedModel:
    """Another library's weights; their architecture too, changed by the fields that are set, unless a name is given."""
    if config.name:
        target = _named(config, source.classes if num_classes is None and config.num_classes is None else num_classes)
    elif source.config:
        target = _changed(source.config, config, num_classes)
    else:
        raise ValueError(f"model.name: it is missing: {source.name} does not tell the architecture; {source.hint}")
    model = build_model(target)
    report = load_weights(
        model,
        source.tensors,
        source.name,
        source_grid=config.pretrained_grid or source.grid,
        new_head=config.new_head,
        layout=source.layout,
    )
    report.taken = source.taken
    return LoadedModel(model, source.preprocessing, source.class_names, report)


def _named(config: ModelConfig, num_classes: int | None) -> ViTConfig | ResNetConfig:
    """The architecture of a name of ours or, where we have none of that name, of timm's."""
    if config.name is None or is_known(config.name) or not is_timm_vit(config.name):
        return resolve(config, num_classes)
    return _changed(timm_config(config.name), config, num_classes)


def load_text_encoder(source: str) -> LoadedTextEncoder:
    """A BERT-layout encoder, ready for use: `hf:NAME`, or a folder with `config.json` and `model.safetensors` (or
    `pytorch_model.bin`).

    ValueError for another layout, for weights that do not fit to the last tensor and for what cannot be fetched.
    """
    folder = fetch_folder(source.removeprefix("hf:")) if source.startswith("hf:") else Path(source)
    if not folder.is_dir():
        raise ValueError(f"model.pretrained: {source!r} is neither a folder nor 'hf:NAME'")
    files = [folder / name for name in ("model.safetensors", "pytorch_model.bin") if (folder / name).is_file()]
    if not files:
        raise ValueError(f"model.pretrained: {source!r} has neither model.safetensors nor pytorch_model.bin")
    tensors = read_tensors(files[0])
    model = TextEncoder(read_bert_config(folder / "config.json", pooler=has_pooler(tensors)))
    return LoadedTextEncoder(model.eval(), load_bert(model, tensors, source))
