"""The models that are compared: each with its own preprocessing, its classes, where it comes from, and its identity.

`MODEL` is a run folder or checkpoint of ours, `timm:NAME`, `torchvision:NAME` or `hf:NAME`. Knows no images.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from vit.config import ClassificationRun, Preprocessing, check
from vit.evaluation.comparison.libraries import LIBRARIES, Head, check_library_name, load_library_model
from vit.evaluation.comparison.provenance import RANDOM, Provenance, from_run
from vit.hub import load_run
from vit.runs import find_checkpoint, holds_checkpoints
from vit.settings import run_config_from


@dataclass(frozen=True, eq=False)
class Contestant:
    """One of the models that are compared."""

    name: str
    """Short, and no other's."""
    source: str
    """What the user wrote."""
    model: nn.Module
    provenance: Provenance
    class_names: list[str]
    """Of its head, in order; empty where its library does not name them."""
    num_classes: int
    identity: str
    """12 hexadecimal digits of its weights."""
    run: Path | None = None
    """The run folder that may hold its answers already."""
    step: int | None = None
    validation: str | None = None
    """Fingerprint of the images that the run held out; None: not one of our runs."""

    @property
    def preprocessing(self) -> Preprocessing:
        return self.provenance.preprocessing


def is_of_library(source: str) -> bool:
    """Whether a MODEL is another library's, by its prefix."""
    return source.partition(":")[0] in LIBRARIES


def check_sources(sources: Sequence[str]) -> None:
    """ValueError for a word that is neither a place with checkpoints nor a library's name, before anything is built."""
    for source in sources:
        rule = "it is neither a folder with checkpoints nor timm:NAME, torchvision:NAME or hf:NAME"
        check(is_of_library(source) or holds_checkpoints(Path(source)), "model", source, rule)
        check_library_name(source)


def load_contestants(sources: Sequence[str], *, select: str, random_head: Head | None) -> list[Contestant]:
    """All of them, in order. `random_head`: the libraries' models get no trained weights."""
    check_sources(sources)
    names = short_names(sources)
    return [
        _from_library(name, source, random_head) if is_of_library(source) else _from_run(name, source, select)
        for name, source in zip(names, sources, strict=True)
    ]


def short_names(sources: Sequence[str]) -> list[str]:
    """The last part of each name, with as many parts before it as it takes to differ; of equal ones, numbered."""
    parts = [_parts(source) for source in sources]
    names = {each: each[-1] for each in parts}
    for depth in range(2, 5):
        taken = Counter(names.values())
        names = {each: "/".join(each[-depth:]) if taken[name] > 1 else name for each, name in names.items()}
    chosen = [names[each] for each in parts]
    return [
        f"{name} ({chosen[: place + 1].count(name)})" if chosen.count(name) > 1 else name
        for place, name in enumerate(chosen)
    ]


def _parts(source: str) -> tuple[str, ...]:
    library, _, name = source.partition(":")
    return (library, *Path(name).parts) if is_of_library(source) else Path(source).resolve().parts


def weights_digest(model: nn.Module) -> str:
    """12 hexadecimal digits that change with any name, type or number of the weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}\t{tensor.dtype}\t{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:12]


def _from_library(name: str, source: str, random_head: Head | None) -> Contestant:
    found = load_library_model(source, random_head)
    return Contestant(
        name=f"{name} · {RANDOM}" if random_head else name,
        source=source,
        model=found.model.eval(),
        provenance=found.provenance,
        class_names=found.class_names,
        num_classes=found.num_classes,
        identity=weights_digest(found.model),
    )


def _from_run(name: str, source: str, select: str) -> Contestant:
    place = find_checkpoint(Path(source), select)
    loaded, state = load_run(place, select)
    trained = run_config_from(state["config"])
    assert isinstance(trained, ClassificationRun)
    assert loaded.preprocessing is not None
    assert loaded.class_names is not None
    step = int(state["progress"]["step"])
    weights = f"run, step {step}{', average' if trained.train.ema_decay is not None else ''}"
    return Contestant(
        name=name,
        source=source,
        model=loaded.model.eval(),
        provenance=Provenance(weights, *from_run(trained), loaded.preprocessing),
        class_names=loaded.class_names,
        num_classes=len(loaded.class_names),
        identity=weights_digest(loaded.model),
        run=place.resolve().parent.parent,
        step=step,
        validation=str(state["data_fingerprint"]).partition("+")[2],
    )
