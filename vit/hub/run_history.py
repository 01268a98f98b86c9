"""How a run's weights came about, from the state of its checkpoint: data, recipe, and the runs that it began from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from vit.config import AugmentConfig, DataConfig
from vit.config.validation import make_settings
from vit.libraries import NOT_STATED, Provenance, timm, torchvision
from vit.runs import find_checkpoint, holds_checkpoints, newest_state, read_checkpoint
from vit.wording import counted

State = Mapping[str, Any]
_OWN_IMAGES = ("imagefolder", "table")
"""Data sets of which the name says nothing: the user's folders and tables."""


def epochs_of_run(checkpoint: Path, planned: int) -> str:
    """How many of its planned epochs a checkpoint's run has finished, in words."""
    state = newest_state(checkpoint.resolve().parent.parent)
    try:
        done, asked = int(state["progress"]["epoch"]), int(state["config"]["train"]["epochs"])
    except (KeyError, TypeError, ValueError):  # a checkpoint alone, or of an earlier version
        return counted(planned, "epoch")
    return counted(asked, "epoch") if done >= asked else f"{done} of {counted(asked, 'epoch')}"


def provenance_of_run(state: State, *, averaged: bool = True, epochs: str | None = None) -> Provenance:
    """Data and recipe of a run; pretrained weights count with the data behind them.

    `epochs`: that it was trained for, in words; None: those that its settings plan.
    """
    settings = state.get("config")
    if settings is None:
        return Provenance("run")
    data, optim, train, progress = settings["data"], settings["optim"], settings["train"], state.get("progress", {})
    pretrained = settings["model"]["pretrained"]
    part = "" if data["fraction"] == 1 else f" of {data['fraction']:.3g} of the images"
    average = ", average" if averaged and train["ema_decay"] is not None else ""
    return Provenance(
        weights=f"run, step {progress.get('step')}{average}",
        data=data_behind(state),
        recipe=f"{optim['name']}, lr {optim['lr']:g}",
        distillation=settings.get("distill", {}).get("teacher") or "none",
        started_from=pretrained or "random weights",
        epochs=f"{epochs or counted(train['epochs'], 'epoch')}{part}",
        images_seen=f"{progress['samples_seen']:,}" if "samples_seen" in progress else NOT_STATED,
        augmentation=_describe_augmentation(settings.get("augment", {})),
        precision=state.get("precision", NOT_STATED),
    )


def data_behind(state: State) -> tuple[str, ...]:
    """The data sets of a run and of the weights that it began from, in order."""
    runs = list(lineage(state))
    pretrained = runs[-1]["config"]["model"]["pretrained"]
    first = _data_of_weights(pretrained) if pretrained else ()
    return (*first, *(_data_name(each["config"]["data"]) for each in reversed(runs)))


def lineage(state: State) -> Iterator[State]:
    """The state of a run, of the run that it began from, and so on; it ends where one cannot be read (`why_unread`)."""
    seen: set[Path] = set()
    while True:
        yield state
        try:
            origin = _origin(state)
        except (OSError, ValueError):  # the run itself is as good as before
            return
        if origin is None or origin[0] in seen:  # the latter: it was trained again from what had begun from it
            return
        seen.add(origin[0])
        state = origin[1]


def _origin(state: State) -> tuple[Path, State] | None:
    """The checkpoint that a run began from, and its state; None where there is none.

    OSError and ValueError for a run whose checkpoints cannot be read or are damaged.
    """
    pretrained = state["config"]["model"]["pretrained"]
    if not pretrained or not holds_checkpoints(Path(pretrained)):
        return None
    checkpoint = find_checkpoint(Path(pretrained))
    found = read_checkpoint(checkpoint, []).state
    return (checkpoint, found) if "config" in found else None


def why_unread(state: State) -> str:
    """Why the run that this one began from cannot be read; empty where it can, and where it began from no run."""
    pretrained = state["config"]["model"]["pretrained"]
    try:
        if pretrained and ":" not in pretrained and not Path(pretrained).exists():
            return "it is not there any more"
        _origin(state)
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def data_of_run(state: State) -> DataConfig | None:
    """The settings of a run's images; None where its state has none."""
    settings = state.get("config", {}).get("data")
    if settings is None:
        return None
    known = {item.name: settings[item.name] for item in fields(DataConfig) if item.name in settings}
    return make_settings(DataConfig, known, "data")


def _data_name(data: Mapping[str, Any]) -> str:
    place = data.get("root") if data["name"] in _OWN_IMAGES else None
    return str(data["name"]) if place is None else f"{data['name']} {place}"


def _data_of_weights(pretrained: str) -> tuple[str, ...]:
    library, _, name = pretrained.partition(":")
    if library == "timm":
        architecture, _, tag = name.partition(".")
        data = timm.provenance_of_tag(architecture, tag).data
        return data if data != (NOT_STATED,) else (f"{NOT_STATED} ({pretrained})",)
    if library == "torchvision":
        return torchvision.provenance_of(torchvision.find_weights(name)[1]).data
    return (f"{NOT_STATED} ({Path(pretrained).name})",)


def _describe_augmentation(settings: Mapping[str, Any]) -> str:
    """The settings that are not at their default, by name."""
    default = vars(AugmentConfig())
    parts = []
    for name, value in settings.items():
        value = tuple(value) if isinstance(value, list) else value
        if value != default.get(name):
            parts.append(name if value is True else f"{name} {value}")
    return ", ".join(parts) or "none"
