"""Opening weights from a file, a folder, or the hubs of timm, torchvision and Hugging Face.

A `Source` holds the tensors and, as far as they are known, the architecture, preprocessing, class names, the grid of
the positions and the training data. Downloads use the libraries' own caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vit.config import Grid, Preprocessing, ResNetConfig, ViTConfig, check_arguments, nearest
from vit.libraries import (
    LibraryModel,
    Provenance,
    UnsupportedArchitecture,
    download_error,
    library_and_name,
    timm,
    timm_reading,
    torchvision,
    transformers,
)
from vit.libraries.image_processors import PREPROCESSING, PROCESSOR
from vit.weights.extent import check_extent
from vit.weights.files import read_file
from vit.weights.huggingface import is_huggingface_folder, read_config, read_folder
from vit.weights.layout import Layout, strip_prefixes
from vit.weights.layouts import find_layout, refuse_unsupported
from vit.weights.lookalike import architecture_like
from vit.weights.timm_folder import is_timm_folder, read_timm_folder

HEAD_NAMES = (
    *("head.weight", "fc.weight", "linear.weight", "heads.head.weight"),
    *("head/bias", "classifier.weight", "cls_classifier.weight", "visual_projection.weight"),
    *("head.fc.weight", "resnet/head/conv2d/bias"),
)
"""Names, in any layout, of tensors with one row per class."""


@dataclass(frozen=True)
class Source:
    """Weights as another library wrote them."""

    name: str
    tensors: dict[str, Tensor]
    config: ViTConfig | ResNetConfig | None
    """The architecture; None where the tensors do not determine it."""
    provenance: Provenance
    preprocessing: Preprocessing | None = None
    unsupported_preprocessing: str = ""
    """Why there is none though the source states one."""
    class_names: list[str] | None = None
    layout: Layout | None = None
    """The layout of the tensors' names; None: ours."""
    grid: Grid | None = None
    """The patch grid of the positions; None: to be inferred from their number."""
    states_config: bool = False
    """The architecture is that of a configuration, with what no tensor tells."""
    own_config: bool = False
    """This package wrote the configuration, so that positions are resized as it says, not as is usual in the layout."""
    note: str = ""
    """Which of several sets of weights in the file these are, and the prefix removed from their names, if any."""

    @property
    def num_classes(self) -> int:
        """Classes of the head; 0: there is no head."""
        tensors = self.tensors if self.layout is None else strip_prefixes(self.layout, self.tensors)
        return next((len(tensors[name]) for name in HEAD_NAMES if name in tensors and tensors[name].dim()), 0)

    @property
    def hint(self) -> str:
        """Why the architecture must be named."""
        if self.layout is None:
            return "its tensors are in no known layout"
        known = f"it is in the layout {self.layout.name}, whose tensors do not determine {self.layout.undetermined}"
        like = self.find_like()
        return f"{known}; its shapes are those of {like}: name that" if like else known

    def find_like(self) -> str | None:
        """The name of an architecture of these shapes; all known ones are tried."""
        return None if self.layout is None else architecture_like(self.layout, self.tensors)


def library_of(source: str) -> str | None:
    """The library of a source: timm, torchvision or hf, by its prefix or its folder's `config.json`; None: a file."""
    library, _ = library_and_name(source)
    if library:
        return library
    if not is_huggingface_folder(Path(source)):
        return None
    return "timm" if is_timm_folder(Path(source)) else "hf"


@check_arguments
def open_source(source: str | Path, *, pretrained: bool = True, num_classes: int | None = None) -> Source:
    """Open `timm:NAME`, `torchvision:NAME`, `hf:NAME_OR_FOLDER`, a folder of timm's or Hugging Face's, or a file.

    `pretrained` False: the library's random initialization, for `num_classes`. ValueError, in one line, for anything
    else; UnsupportedArchitecture for a library's model that this package does not compute.
    """
    source = str(source)
    library = library_of(source)
    name = library_and_name(source)[1] or source
    if library is None:
        return open_file(Path(source))
    if library == "timm" and Path(name).is_dir() and pretrained:
        return _open_timm_folder(Path(name), source)
    if library == "torchvision" and pretrained:
        return _download_torchvision(name)
    if library == "hf" and pretrained:
        path = _huggingface_folder(name)
        return _open_timm_folder(path, source) if is_timm_folder(path) else _open_huggingface_folder(path, source)
    return _open_library_model_as_ours(library, name, source, pretrained, num_classes)


def open_library_model(source: str, *, pretrained: bool = True, num_classes: int | None = None) -> LibraryModel:
    """The library's own model of a source. ValueError where the source is no library's, or building it fails."""
    library = library_of(source)
    name = library_and_name(source)[1] or source
    if library == "timm" and not Path(name).is_dir():
        return timm.build(name, pretrained=pretrained, num_classes=num_classes)
    if library == "torchvision":
        return torchvision.build(name, pretrained=pretrained, num_classes=num_classes)
    if library in ("timm", "hf"):
        folder = _huggingface_folder(name, weights=pretrained)
        if is_timm_folder(folder):
            return read_timm_folder(folder).build(pretrained=pretrained, num_classes=num_classes)
        return transformers.build(folder, name, pretrained=pretrained, num_classes=num_classes)
    raise ValueError(f"implementation: 'theirs' is not valid: {source!r} is a file, not a model of a library")


def _huggingface_folder(name: str, *, weights: bool = True) -> Path:
    path = Path(name)
    if is_huggingface_folder(path):
        return path
    if path.is_dir():
        raise ValueError(f"model.pretrained: {name!r} has no config.json")
    return transformers.fetch_folder(name, PREPROCESSING, PROCESSOR, weights=weights)


def _open_library_model_as_ours(
    library: str, name: str, source: str, pretrained: bool, num_classes: int | None
) -> Source:
    """The tensors of the library's own model, if this package computes it."""
    if library == "timm" and not Path(name).is_dir():
        try:
            timm.config_by_name(name)  # before downloading: refuses unsupported architectures
        except (OSError, RuntimeError) as error:
            raise download_error(f"timm's model {name!r}", error) from error
    elif library == "torchvision":
        _check_torchvision_architecture(torchvision.find_weights(name)[0])
    theirs = open_library_model(source, pretrained=pretrained, num_classes=num_classes)
    config: ViTConfig | ResNetConfig | None
    layout: Layout | None
    if isinstance(theirs.model, transformers.TransformersModel):
        tensors = transformers.saved_tensors(theirs.model)
        config, layout = read_config(theirs.model.config.to_dict(), tensors, source)
    else:
        tensors = theirs.model.state_dict()
        if theirs.library == "timm":
            config = timm_reading.architecture_of(theirs.model, name)
            layout = find_layout(tensors, config)
        else:
            layout = find_layout(tensors)
            config = None if layout is None else layout.config(tensors)
    return Source(
        name=source,
        tensors=tensors,
        config=config,
        provenance=theirs.provenance,
        preprocessing=theirs.preprocessing,
        unsupported_preprocessing=theirs.unsupported_preprocessing,
        class_names=theirs.class_names or None,
        layout=layout,
        grid=_grid(config),
        states_config=theirs.library != "torchvision",
    )


def open_file(path: Path) -> Source:
    """A file of tensors, with its architecture if they determine it. ValueError for unsupported tensors."""
    file = read_file(path)
    refuse_unsupported(file.tensors, str(path))
    layout = find_layout(file.tensors)
    try:
        config = None if layout is None else layout.config(strip_prefixes(layout, file.tensors))
    except KeyError:  # a tensor is missing, which the loader then names
        config = None
    except (IndexError, TypeError, ArithmeticError, RuntimeError) as error:  # of a shape that is not as expected
        rule = f"its tensors do not have the shapes of the layout {layout.name if layout else ''}"
        raise ValueError(f"model.pretrained: {path} is damaged: {rule}") from error
    except ValueError as error:
        raise ValueError(f"model.pretrained: {path} is not supported: {error}") from error
    return Source(str(path), file.tensors, config, Provenance(f"file {path.name}"), layout=layout, note=file.note)


def _open_timm_folder(path: Path, name: str) -> Source:
    """ValueError for a folder without weights, UnsupportedArchitecture for a model that this package lacks."""
    folder = read_timm_folder(path)
    config = folder.config
    weights = folder.read_tensors()
    check_extent(config, weights.tensors, str(folder.file))
    preprocessing, unsupported = folder.stated_preprocessing
    return Source(
        name=name,
        tensors=weights.tensors,
        config=config,
        provenance=folder.provenance,
        preprocessing=preprocessing,
        unsupported_preprocessing=unsupported,
        class_names=folder.class_names(config.num_classes) or None,
        layout=find_layout(weights.tensors, config),
        grid=_grid(config),
        states_config=True,
        own_config=folder.is_own,
        note=weights.note,
    )


def _open_huggingface_folder(path: Path, name: str) -> Source:
    folder = read_folder(path)
    return Source(
        name=name,
        tensors=folder.tensors,
        config=folder.config,
        provenance=transformers.PROVENANCE,
        preprocessing=folder.preprocessing,
        unsupported_preprocessing=folder.unsupported_preprocessing,
        class_names=folder.class_names,
        layout=folder.layout,
        grid=_grid(folder.config),
        states_config=True,
    )


def _download_torchvision(name: str) -> Source:
    architecture, entry = torchvision.find_weights(name)
    _check_torchvision_architecture(architecture)
    try:
        tensors = entry.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        raise download_error(f"torchvision's weights {name!r}", error) from error
    names = list(entry.meta["categories"])
    layout = find_layout(tensors)
    config = None if layout is None else layout.config(tensors)
    return Source(
        name=f"torchvision:{name}",
        tensors=tensors,
        config=config,
        provenance=torchvision.provenance_of(entry),
        preprocessing=torchvision.preprocessing_of(entry.transforms()),
        class_names=names,
        layout=layout,
        grid=_grid(config),
    )


def _check_torchvision_architecture(architecture: str) -> None:
    if not torchvision.is_ours(architecture):
        known = (*torchvision.RESNETS, *torchvision.NAMES)
        rule = f"torchvision:{architecture} is not supported; {nearest(architecture, known)}"
        raise UnsupportedArchitecture(f"model.pretrained: {rule}")


def _grid(config: ViTConfig | ResNetConfig | None) -> Grid | None:
    return config.grid_size if isinstance(config, ViTConfig) else None
