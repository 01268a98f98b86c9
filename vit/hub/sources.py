"""Kinds of sources, recognised without building anything; their short names; the options that they take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from vit.config import check, check_no_pipe
from vit.config.rules import nearest_path, shown
from vit.config.yaml_files import packaged_configs
from vit.data.parts import is_image
from vit.libraries import LIBRARIES, library_and_name, timm, torchvision
from vit.models.zoo import is_known, nearest_model
from vit.runs import holds_checkpoints
from vit.weights.files import SUFFIXES
from vit.weights.huggingface import holds_weights
from vit.weights.sources import library_of

SourceKind = Literal["run", "library", "folder", "file", "architecture", "function", "module"]
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SOURCES = (
    "neither a run or checkpoint folder, a weights file or folder, timm:NAME, torchvision:NAME, hf:NAME, "
    "nor package.file:FUNCTION"
)


def source_kind(source: str | nn.Module, field: str = "model") -> SourceKind:
    """The kind of a source, without building anything. ValueError, which names the `field`, for a source of no kind and
    an unknown name.

    `library`: a model by its name, or by a `config.json` without weights beside it; `folder`: with weights.
    """
    if isinstance(source, nn.Module):
        return "module"
    check(bool(source.strip()), field, source, "it is empty")
    _check_reachable(source, field)
    library, name = library_and_name(source)
    if library:
        if library == "timm" and not Path(name).is_dir():
            timm.check_name(name)
        elif library == "torchvision":
            torchvision.find_weights(name)
        return "folder" if library == "hf" and holds_weights(Path(name)) else "library"
    path = Path(source)
    check_no_pipe(field, path)
    if holds_checkpoints(path):
        return "run"
    if path.is_file():
        _check_weights_file(path, field)
        return "file"
    if library_of(source) is not None:
        return "folder" if holds_weights(path) else "library"
    if is_function(source, field):
        return "function"
    is_path = "/" in source or source.startswith(".")  # such names need no timm, whose import takes seconds
    if not is_path and (is_known(source) or timm.is_vit(source)):
        return "architecture"
    rule = "the folder holds no readable checkpoint, no config.json and no weights"
    check(not path.is_dir(), field, source, rule)
    check(path.suffix not in SUFFIXES, field, source, f"there is no file {source!r}")
    trains = f"it is a configuration, which trains a model: vit train --config {source}; name the run's folder then"
    check(source not in packaged_configs(), field, source, f"{trains}, as runs/{path.name}")
    check(not is_path, field, source, _no_such_place(source))
    check(not timm.names_weights(source), field, source, f"it names pretrained weights; write timm:{source}")
    others = f", nor an architecture; {nearest_model(source)}" if field == "model" else ""
    raise ValueError(f"{field}: {shown(source)} is not valid: it is {_SOURCES}{others}")


def _check_reachable(source: str, field: str) -> None:
    """ValueError for a name that is too long for a file, and for a place that may not be entered."""
    try:
        Path(source).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a zero byte, which is reported elsewhere
        pass
    except OSError as error:
        raise ValueError(f"{field}: {shown(source)} is not valid: {error.strerror}") from error


def _check_weights_file(path: Path, field: str) -> None:
    is_misplaced = field == "model" and is_image(path.name)
    check(not is_misplaced, field, str(path), "it is an image; the model is named first, then images")
    run = next((str(folder) for folder in path.parents if holds_checkpoints(folder)), "")
    meant = f"; did you mean the run, {run}?" if run else ""
    rule = f"it is neither a weights file ({', '.join(SUFFIXES)}) nor a run folder{meant}"
    check(path.suffix in SUFFIXES, field, str(path), rule)


def _no_such_place(source: str) -> str:
    """The rule for a path without file or folder, which may be the name of a model of Hugging Face's."""
    owner, _, name = source.partition("/")
    is_name = owner and name and "/" not in name and not owner.startswith((".", "run")) and not Path(owner).exists()
    hint = f"; if it is a model of Hugging Face's, write hf:{source}" if is_name else ""
    near = nearest_path(Path(source))
    return f"there is no such file or folder{hint or (near and f'; {near}')}"


def is_function(source: str, field: str) -> bool:
    """Whether the source has the form `package.file:function`. ValueError for a path in the place of the module."""
    file, _, function = source.rpartition(":")
    if file.endswith(".py") and function.isidentifier():
        module = ".".join(Path(file).with_suffix("").parts).lstrip("/.")
        rule = f"a module's name stands before the colon; write {module}:{function}"
        raise ValueError(f"{field}: {source!r} is not valid: {rule}")
    return source.partition(":")[0] not in (*LIBRARIES, "hf-hub") and _FUNCTION.fullmatch(source) is not None


def option_scopes(options: Mapping[str, Any]) -> dict[str, tuple[tuple[SourceKind, ...], str]]:
    """The kinds of sources on which each option of `open_model` has an effect, and a name for these kinds.

    Options that are left out affect all. `options` holds the given values.
    """
    runs: tuple[SourceKind, ...] = ("run",)
    random: tuple[SourceKind, ...] = ("architecture", "library") if options.get("random_weights") else ("architecture",)
    others: tuple[SourceKind, ...] = ("library", "folder", "file", "architecture", "function", "module")
    implementation: tuple[tuple[SourceKind, ...], str]
    architecture: tuple[tuple[SourceKind, ...], str]
    if options.get("implementation") == "theirs":
        implementation = ("library", "folder", "module", "function"), "libraries' models"
        architecture = ("file",), "files where the implementation is 'theirs'"
    else:
        implementation = ("run", "file", "folder", "library", "architecture"), "models that we compute"
        architecture = ("file", "folder", "library"), "files and folders"
    return {
        "select": (runs, "runs"),
        "weights": (runs, "runs"),
        "architecture": architecture,
        "random_weights": (("library", "architecture"), "names, as timm:NAME or an architecture's, not on weights"),
        "seed": (random, "random weights"),
        "num_classes": (random, "random weights"),
        **dict.fromkeys(("preprocessing", "mean", "std"), (others, "models that are no run, whose own is enforced")),
        "class_names": (others, "models that are no run, which names its own"),
        "implementation": implementation,
    }


def short_names(sources: Sequence[str]) -> list[str]:
    """The last part of each source, with as many parts before it as it takes to differ; of equal ones, numbered."""
    paths: list[tuple[str, ...]] = []
    for source in sources:
        library, name = library_and_name(source)
        paths.append((library, *Path(name).parts) if library else Path(source).resolve().parts)
    names = {path: path[-1] for path in paths}
    for depth in range(2, 5):
        taken = Counter(names.values())
        names = {path: "/".join(path[-depth:]) if taken[name] > 1 else name for path, name in names.items()}
    chosen = [names[path] for path in paths]
    return [
        f"{name} ({chosen[: place + 1].count(name)})" if chosen.count(name) > 1 else name
        for place, name in enumerate(chosen)
    ]
