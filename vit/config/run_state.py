"""The schema of a checkpoint's `state.json`, checked by pydantic: one that is not ours is a line, not a traceback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic asks for this one below Python 3.12

_Count = Annotated[int, Field(ge=0)]


class _Best(TypedDict):
    step: _Count
    value: float


class _Stretch(TypedDict):
    from_step: _Count
    machine: str | None
    commit: str | None


class _Progress(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic's way
    step: _Count
    epoch: _Count
    step_in_epoch: _Count
    samples_seen: _Count
    seconds: NotRequired[Annotated[float, Field(ge=0)]]
    window: NotRequired[dict[str, float]]
    best: NotRequired[_Best | None]
    stretches: NotRequired[list[_Stretch]]


class _Model(TypedDict):
    kind: str


class _Preprocessing(TypedDict):
    image_size: list[int]


class _Task(TypedDict):
    """A task adds what it needs; of these it has all or, where it has no images, the model alone."""

    model: _Model
    preprocessing: NotRequired[_Preprocessing]
    class_names: NotRequired[list[str]]
    thresholds: NotRequired[list[float]]
    encoder: NotRequired[str]


class _State(TypedDict):
    task: NotRequired[_Task]
    progress: NotRequired[_Progress]
    config: NotRequired[dict[str, Any]]
    best: NotRequired[_Best | None]
    model_name: NotRequired[str]
    data_fingerprint: NotRequired[str]
    images: NotRequired[str]
    precision: NotRequired[str]
    scaler: NotRequired[dict[str, Any] | None]
    processes: NotRequired[int]


def check_state(state: Mapping[str, Any], where: object, needed: Iterable[str]) -> None:
    """ValueError, naming the entry, unless the state has the needed entries, and all that it has are of their types."""
    for name in needed:
        if name not in state:
            raise ValueError(f"{where}: state.json has no {name!r}, so it is not the checkpoint of a run of ours")
    try:
        _adapter().validate_python(state, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        shown = "" if first["type"] == "missing" else f"{str(first['input'])[:60]!r} is not valid: "
        raise ValueError(f"{where}: state.json: {place}: {shown}{first['msg']}") from None


@cache
def _adapter() -> TypeAdapter[_State]:
    return TypeAdapter(_State)
