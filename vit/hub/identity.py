"""A model's identity, under which stored results are found again: its weights, and what computes with them."""

from __future__ import annotations

import hashlib
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from functools import partial, singledispatch
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

_BOOKKEEPING = frozenset(vars(nn.Module()))
"""Attributes that torch gives to every module: its parts, hooks and mode."""
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_KNOWN = ("torch", "vit", "builtins")
"""Packages whose code is not described."""
_ADDED = frozenset(("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__parameters__"))
_WITHOUT_EFFECT = frozenset(
    ("backend", "init", "dropout_rate", "attention_dropout_rate", "patch_dropout_rate", "stochastic_depth_rate")
)
"""Settings of our models that change no logits in evaluation; the backend changes them by rounding only."""
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, Enum, PurePath)
_UNKNOWN = secrets.token_hex()
"""Stands for what cannot be described: another in every process, so that nothing stored by an earlier one is used."""


def model_digest(model: nn.Module) -> str:
    """12 hexadecimal digits that change with any name, type or number of the weights and buffers, with the settings of
    our models, and with attributes, forward hooks and code of other modules.

    Code of theirs that is neither in their classes nor in the files that define these does not count.
    """
    digest = hashlib.sha256()
    for part in _tensors({**dict(model.named_buffers()), **model.state_dict()}):
        digest.update(part)
    for part in (*_modules(model), *_files(model)):
        digest.update(part)
    return digest.hexdigest()[:12]


def weights_digest(model: nn.Module) -> str:
    """12 hexadecimal digits that change with any name, type or number of the weights, and with nothing else."""
    digest = hashlib.sha256()
    for part in _tensors(model.state_dict()):
        digest.update(part)
    return digest.hexdigest()[:12]


def _tensors(state: Mapping[str, Any]) -> Iterator[bytes]:
    for name, value in sorted(state.items()):
        yield f"{name}\t".encode()
        if isinstance(value, Tensor):
            yield _header(value)
            yield _numbers(value)
        else:  # a module's `get_extra_state` may return anything
            yield _described(value).encode()


def _header(tensor: Tensor) -> bytes:
    return f"{tensor.dtype}\t{tuple(tensor.shape)}\n".encode()


def _numbers(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _modules(model: nn.Module) -> Iterator[bytes]:
    for name, module in model.named_modules():
        kind, attributes = type(module), vars(module)
        hooks = [list(attributes[each].values()) for each in _FORWARD_HOOKS]
        parts: list[Any] = [name, kind, hooks, attributes.get("forward")]
        if _package(kind) == "vit":
            config = getattr(module, "config", None)
            settings = asdict(config) if is_dataclass(config) and not isinstance(config, type) else {}
            parts.append({key: value for key, value in settings.items() if key not in _WITHOUT_EFFECT})
        elif not isinstance(module, _DropoutNd):
            parts.append({key: value for key, value in attributes.items() if key not in _BOOKKEEPING})
            parts += [_own(each) for each in kind.__mro__ if _package(each) not in _KNOWN]
        yield _described(parts).encode()


def _own(kind: type) -> dict[str, Any]:
    """Methods and attributes of a class, without what Python adds to each."""
    return {name: value for name, value in vars(kind).items() if name not in _ADDED}


def _files(model: nn.Module) -> Iterator[bytes]:
    """The files that define the classes, for the functions beside these."""
    kinds = {each for module in model.modules() for each in type(module).__mro__ if _package(each) not in _KNOWN}
    for home in sorted({kind.__module__ for kind in kinds}):
        file = getattr(sys.modules.get(home), "__file__", None)
        if file is not None and Path(file).is_file():
            yield Path(file).read_bytes()


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _described(value: Any, above: tuple[int, ...] = ()) -> str:
    """A text that is the same for equal values, in any process; `above`: the objects that this one is in."""
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    if id(value) in above:
        return "itself"
    inside = (*above, id(value))
    if isinstance(value, Tensor):
        return hashlib.sha256(_header(value) + _numbers(value)).hexdigest()
    if isinstance(value, (set, frozenset)):
        return f"set {sorted(_described(each, inside) for each in value)}"
    if isinstance(value, Mapping):
        return f"mapping {sorted((_described(key, inside), _described(value[key], inside)) for key in value)}"
    has_name = hasattr(value, "__qualname__") and hasattr(value, "__module__")
    named, parts = value if has_name else type(value), _parts(value)
    described = _UNKNOWN if parts is None else [_described(each, inside) for each in parts]
    return f"{named.__module__}.{named.__qualname__} {described}"


@singledispatch
def _parts(value: object) -> Sequence[object] | None:
    """All that an object's results depend on; None where that cannot be told."""
    return [vars(value)] if hasattr(value, "__dict__") else None


@_parts.register
def _(value: list | tuple) -> Sequence[object]:  # type: ignore[type-arg]
    return value


@_parts.register
def _(value: type | BuiltinFunctionType) -> Sequence[object]:  # noqa: ARG001
    return ()  # the name says it


@_parts.register
def _(value: ModuleType) -> Sequence[object]:
    return (value.__name__,)


@_parts.register
def _(value: FunctionType) -> Sequence[object]:
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    return value.__code__, value.__defaults__, value.__kwdefaults__, cells


@_parts.register
def _(value: CodeType) -> Sequence[object]:
    return value.co_code, value.co_names, value.co_consts


@_parts.register
def _(value: MethodType) -> Sequence[object]:
    # a module's own parts are described beside it
    return value.__func__, type(value.__self__) if isinstance(value.__self__, nn.Module) else value.__self__


@_parts.register
def _(value: partial) -> Sequence[object]:  # type: ignore[type-arg]
    return value.func, value.args, value.keywords


@_parts.register
def _(value: staticmethod | classmethod) -> Sequence[object]:  # type: ignore[type-arg]
    return (value.__func__,)


@_parts.register
def _(value: property) -> Sequence[object]:
    return (value.fget,)


@_parts.register
def _(value: GeneratorType) -> Sequence[object]:  # type: ignore[type-arg]
    return (value.gi_code,)  # of a decorator made of a context manager, which has not begun
