"""A folder in timm's format: `config.json` names the model and how to build it, and its tensors are beside it.

timm's `save_for_hf` writes it, as transformers' `TimmWrapper…` does, and timm's repositories on the hub are such. One
that this package writes also has our own settings, which say what timm's have no words for; timm passes over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.config import Preprocessing, ResNetConfig, ViTConfig, check
from vit.libraries import NEVER_TRAINED, LibraryModel, Provenance, timm
from vit.libraries.foreign_json import TimmArguments, TimmFile, TimmSettings, check_schema, read_json
from vit.libraries.transformers import class_names_of
from vit.models import config_from_dict
from vit.weights.files import TensorFile, read_file

FILES = ("model.safetensors", "pytorch_model.bin")
OURS = "vit"
"""The key of our own settings."""
_STATED = {"input_size", "crop_pct", "interpolation", "mean", "std"}
"""Settings that say how images are prepared."""
_NOT_ARCHITECTURE = {
    *("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "pretrained_filter_fn"),
    *("pretrained_custom_load", "pretrained_model_args", "checkpoint_path", "cache_dir", "kwargs_filter"),
    *("scriptable", "exportable", "no_jit", "features_only", "feature_cfg", "feature_cls", "out_indices"),
}
"""Arguments of `timm.create_model` that read another file, download, or change more than the model's layers."""


def is_timm_folder(path: Path) -> bool:
    """ValueError for a `config.json` that is not JSON."""
    file = path / "config.json"
    return file.is_file() and "architecture" in read_json(file)


@dataclass(frozen=True)
class TimmFolder:
    """The content of `config.json`, validated."""

    path: Path
    content: Mapping[str, Any]
    settings: Mapping[str, Any]
    """`pretrained_cfg`, as far as it says something."""
    arguments: Mapping[str, Any]
    """Keyword arguments of timm's function for the architecture, the number of classes included."""

    @property
    def file(self) -> Path:
        return self.path / "config.json"

    @property
    def architecture(self) -> str:
        return str(self.content["architecture"])

    @property
    def is_own(self) -> bool:
        """Whether this package wrote it."""
        return OURS in self.content

    @property
    def config(self) -> ViTConfig | ResNetConfig:
        """ValueError for our own settings that were altered; UnsupportedArchitecture for a model that we lack."""
        if not self.is_own:
            return timm.config_by_name(self.architecture, **self.arguments)
        with self._own_settings() as own:
            return config_from_dict(own["model"])

    @property
    def provenance(self) -> Provenance:
        if not self.is_own:
            return timm.provenance_of_tag(self.architecture, self.settings.get("tag", ""))
        with self._own_settings() as own:
            texts = {name: str(value) for name, value in own["provenance"].items() if name != "data"}
            return Provenance(data=tuple(map(str, own["provenance"]["data"])), **texts)

    @contextmanager
    def _own_settings(self) -> Iterator[Any]:
        try:
            yield self.content[OURS]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"model.pretrained: {self.file}: {OURS!r} was altered: {error}") from error

    @property
    def stated_preprocessing(self) -> tuple[Preprocessing | None, str]:
        """None where the folder does not say it, or says what has no counterpart here, with the reason."""
        return timm.stated_preprocessing(self.settings, str(self.path)) if set(self.settings) >= _STATED else (None, "")

    def class_names(self, num_classes: int) -> list[str]:
        """Empty where it names none."""
        return class_names_of(self.content, num_classes, self.file)

    def read_tensors(self) -> TensorFile:
        """ValueError for a folder without weights."""
        files = [self.path / name for name in FILES if (self.path / name).is_file()]
        if not files:
            raise ValueError(f"model.pretrained: {str(self.path)!r} has neither {' nor '.join(FILES)}")
        return read_file(files[0])

    def build(self, *, pretrained: bool, num_classes: int | None) -> LibraryModel:
        """timm's own model, with the folder's tensors or, for `num_classes`, with random ones."""
        options = dict(self.arguments)
        if num_classes is not None and not pretrained:
            options["num_classes"] = num_classes
        tensors = self.read_tensors().tensors if pretrained else None
        model = timm.build_with(self.architecture, tensors, str(self.path), **options)
        names = self.class_names(model.num_classes) if pretrained else []
        provenance = self.provenance if pretrained else NEVER_TRAINED
        preprocessing, unsupported = self.stated_preprocessing
        return LibraryModel(model, preprocessing, names, model.num_classes, provenance, "timm", unsupported)


def read_timm_folder(path: Path) -> TimmFolder:
    """Read `config.json`. ValueError naming a key that is missing or damaged."""
    file, content = path / "config.json", read_json(path / "config.json", TimmFile)
    stated = {key: value for key, value in (content.get("pretrained_cfg") or {}).items() if value is not None}
    check_schema(stated, TimmSettings, f"model.pretrained: {file}: pretrained_cfg")
    arguments = content.get("model_args") or {}
    check_schema(arguments, TimmArguments, f"model.pretrained: {file}: model_args")
    for key in _NOT_ARCHITECTURE & arguments.keys():
        rule = "it is no part of an architecture; the weights are those beside the file"
        check(False, f"model.pretrained: {file}: model_args.{key}", arguments[key], rule)
    # transformers' wrapper without a head writes a number of classes too
    headless = content.get("architectures") == ["TimmWrapperModel"]
    return TimmFolder(path, content, stated, arguments | {"num_classes": 0 if headless else content["num_classes"]})
