"""A model's identity, under which stored results are found again: its weights, and what computes with them."""

from __future__ import annotations

import hashlib
import json
import pickle
import secrets
import sys
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

_KNOWN = ("torch", "vit")
"""Packages whose code is not read."""
_WITHOUT_EFFECT = {"backend", "training"}
"""Names of attributes and settings: the backend of attention changes results by rounding only."""


def model_digest(model: nn.Module) -> str:
    """12 hexadecimal digits that change with any name, type or number of the weights, with the architecture and with
    the code of modules that are neither torch's nor ours.

    Code that cannot be read, such as that of a class which was typed into an interpreter, gives other digits each time,
    so that nothing stored is used.
    """
    digest = hashlib.sha256()
    for part in (*_weights(model), *_settings(model), *_code(model)):
        digest.update(part)
    return digest.hexdigest()[:12]


def _weights(model: nn.Module) -> Iterator[bytes]:
    for name, value in sorted(model.state_dict().items()):
        if not isinstance(value, Tensor):  # a module's `get_extra_state` may return anything
            yield name.encode() + pickle.dumps(value)
            continue
        yield f"{name}\t{value.dtype}\t{tuple(value.shape)}\n".encode()
        yield value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _settings(model: nn.Module) -> Iterator[bytes]:
    """Class, configuration, and attributes that are numbers or text, of each module."""
    for name, module in model.named_modules():
        attributes = {key: value for key, value in vars(module).items() if not key.startswith("_") and _is_plain(value)}
        config = getattr(module, "config", None)
        if is_dataclass(config) and not isinstance(config, type):
            attributes |= asdict(config)
        for key in _WITHOUT_EFFECT & attributes.keys():
            del attributes[key]
        kind = type(module).__qualname__
        yield json.dumps([name, kind, module.extra_repr(), attributes], sort_keys=True, default=str).encode()


def _is_plain(value: object) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _code(model: nn.Module) -> Iterator[bytes]:
    """The files that define the classes of its modules."""
    homes = {type(module).__module__ for module in model.modules()}
    for home in sorted(home for home in homes if home.partition(".")[0] not in _KNOWN):
        file = getattr(sys.modules.get(home), "__file__", None)
        try:
            yield Path(file or "").read_bytes()
        except OSError:
            yield secrets.token_bytes()
