"""A model from the checkpoint of a training run, as it was trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from vit.config import Preprocessing
from vit.config.run_state import check_state
from vit.hub.opened import OpenedModel
from vit.hub.run_history import data_of_run, epochs_of_run, provenance_of_run
from vit.hub.sources import short_names
from vit.models import Classifier, build_model, config_from_dict
from vit.runs import find_checkpoint, read_checkpoint
from vit.weights.report import LoadReport


def open_run(source: str, select: str, weights: str) -> OpenedModel[Classifier]:
    """The classifier of a run, with the weights of the selected checkpoint."""
    checkpoint = find_checkpoint(Path(source), select)
    tensors, state = read_run(checkpoint, select, weights)
    task = state["task"]
    check_kind(Path(source), task["model"]["kind"], ("vit", "resnet"))
    with _state_read(checkpoint):
        config = config_from_dict(task["model"])
    with _state_read(checkpoint, ValueError, RuntimeError):  # for example, too little memory
        model = build_model(config)
    with _state_read(checkpoint):
        part = task.get("encoder", "")  # of a model around it, which is left out
        tensors = {name.removeprefix(part): tensor for name, tensor in tensors.items() if name.startswith(part)}
        model.load_state_dict(tensors)
        stored = task["preprocessing"].items()
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in stored}
        stated = Preprocessing(**values)
        epochs = epochs_of_run(checkpoint, state["config"]["train"]["epochs"]) if "config" in state else None
    with _state_read(checkpoint, ValueError):  # as where torchvision does not know the weights that it began from
        provenance = provenance_of_run(state, averaged=weights != "raw", epochs=epochs)
    _check_unaltered(checkpoint, state, stated, model)
    return OpenedModel(
        name=short_names([source])[0],
        source=source,
        model=model,
        provenance=provenance,
        stated_preprocessing=stated,
        class_names=list(task["class_names"]),
        num_classes=len(task["class_names"]),
        multilabel="thresholds" in task,
        report=LoadReport(source, len(tensors), loaded=sorted(tensors)),
        checkpoint=checkpoint,
        state=state,
    )


@contextmanager
def _state_read(checkpoint: Path, *elsewhere: type[Exception]) -> Iterator[None]:
    """ValueError with the checkpoint's name for an error inside; kinds of error `elsewhere` do not blame its state."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, elsewhere):
            raise ValueError(f"{checkpoint}: {reason}") from error
        known = "state.json does not describe the tensors beside it, or an older version wrote them"
        raise ValueError(f"{checkpoint}: {known} ({reason[:200]})") from None


def read_run(path: Path, select: str, weights: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The chosen tensors and the state of a run's checkpoint.

    ValueError where the run kept no average to choose, and for the raw weights of a multi-label run that kept one.
    """
    checkpoint = read_checkpoint(find_checkpoint(path, select), ["model", "ema"])
    if weights == "ema" and "ema" not in checkpoint.tensors:
        raise ValueError(f"weights: 'ema' is not valid: {str(path)!r} kept no average (train.ema_decay was not set)")
    check_state(checkpoint.state, checkpoint.path, ["task"])
    averaged = "ema" in checkpoint.tensors and weights != "raw"
    if "thresholds" in checkpoint.state["task"] and "ema" in checkpoint.tensors and weights == "raw":
        raise ValueError("weights: 'raw' is not valid: thresholds were chosen for the averaged weights; leave it out")
    return checkpoint.tensors["ema" if averaged else "model"], checkpoint.state


def _check_unaltered(
    checkpoint: Path, state: Mapping[str, Any], preprocessing: Preprocessing, model: Classifier
) -> None:
    """ValueError where the state was altered by hand: its parts were written together and must agree."""
    names, outputs = state["task"].get("class_names", ()), model.config.num_classes
    rule = f"state.json names {len(names)} classes, and the model has {outputs} outputs"
    if len(names) != outputs:
        raise ValueError(f"{checkpoint}: {rule}")
    data = data_of_run(state)
    if data is None:
        return
    expected = data.preprocessing(model.config.image_size)
    for item in fields(Preprocessing):
        stored, trained = getattr(preprocessing, item.name), getattr(expected, item.name)
        if stored != trained:
            raise ValueError(
                f"{checkpoint}: the preprocessing in state.json was altered: {item.name} is {stored}, and the run was "
                f"trained with {trained}"
            )


def check_kind(path: Path, kind: str, expected: tuple[str, ...]) -> None:
    """ValueError, naming the command for it, unless the run holds a model of an expected kind."""
    if kind not in expected:
        commands = {"vit": "vit predict", "resnet": "vit predict", "translator": "vit translate"}
        rule = f"it holds a model of kind {kind!r}; for that there is `{commands.get(kind, 'vit eval')}`"
        raise ValueError(f"model: {str(path)!r} is not valid here: {rule}")
