"""What every setting is, in a line: its name, its default and the docstring beside it in the dataclass."""

from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import fields, is_dataclass
from textwrap import shorten
from typing import Any, get_type_hints

from vit.config.model import ModelConfig, ViTConfig
from vit.config.resnet import ResNetConfig
from vit.config.run import RunConfig

_LONGEST = 130


def settings_table(kind: type[RunConfig]) -> str:
    """All settings of a task's runs by section, as they are given on the command line."""
    default, hints = kind(), get_type_hints(kind)  # type: ignore[call-arg]  # every task has a default for all
    alone = [item.name for item in fields(kind) if not is_dataclass(hints[item.name])]
    sections = {"": _lines("", default, alone, _docstrings(kind))}
    for item in fields(kind):
        if item.name not in alone:
            section = getattr(default, item.name)
            names = [inner.name for inner in fields(section)]
            sections[item.name] = _lines(f"{item.name}.", section, names, _docstrings(type(section)))
    return "\n\n".join("\n".join([f"{name or 'the run'}:", *lines]) for name, lines in sections.items())


def _lines(prefix: str, section: Any, names: list[str], said: dict[str, str]) -> list[str]:
    lines = []
    for name in names:
        value = getattr(section, name)
        shown = value if isinstance(value, str) else json.dumps(value).replace(" ", "")
        option = f"  --{prefix}{name} {shown}"
        lines.append(f"{option:44}  {said[name]}".rstrip() if name in said else option)
    return lines


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """Field → the first sentence of the docstring below it, of the class or of those that it takes its fields from."""
    said: dict[str, str] = {}
    taken = (ResNetConfig, ViTConfig) if kind is ModelConfig else ()
    for each in (*taken, *reversed([base for base in kind.__mro__ if is_dataclass(base)])):
        body = ast.parse(inspect.getsource(each)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(field.target, ast.Name):
                text = ast.literal_eval(after.value)
                said[field.target.id] = re.split(r"(?<=[.])\s(?=[A-Z`])", " ".join(text.split()))[0].removesuffix(".")
                said[field.target.id] = shorten(said[field.target.id], _LONGEST, placeholder=" …")
    return said
