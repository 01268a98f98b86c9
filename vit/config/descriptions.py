"""Descriptions of the settings: name, type, default and the docstring beside the field in its dataclass."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from textwrap import shorten
from typing import Any, get_type_hints

from vit.config.arguments import describe_type
from vit.config.model import ModelConfig, ViTConfig
from vit.config.resnet import ResNetConfig
from vit.config.run import RunConfig

_LONGEST = 130


@dataclass(frozen=True)
class SettingDescription:
    name: str
    """Dotted, as on the command line."""
    values: str
    default: str
    text: str
    """Empty where the name says all."""

    @property
    def first_sentence(self) -> str:
        return re.split(r"(?<=[.])\s(?=[A-Z`])", self.text)[0].removesuffix(".")


def describe_settings(kind: type[RunConfig]) -> dict[str, list[SettingDescription]]:
    """All settings of a task's runs by section; "" is the section of those that stand alone."""
    default, hints = kind(), get_type_hints(kind)  # type: ignore[call-arg]  # every task has a default for all
    alone = [item.name for item in fields(kind) if not is_dataclass(hints[item.name])]
    sections = {"": list(_descriptions("", default, alone))}
    for item in fields(kind):
        if item.name not in alone:
            section = getattr(default, item.name)
            names = [inner.name for inner in fields(section)]
            sections[item.name] = list(_descriptions(f"{item.name}.", section, names))
    return sections


def settings_table(kind: type[RunConfig]) -> str:
    """The settings in lines of text, for `--help`."""
    return "\n\n".join(
        "\n".join([f"{name or 'the run'}:", *map(_line, settings)])
        for name, settings in describe_settings(kind).items()
    )


def _line(setting: SettingDescription) -> str:
    said = shorten(setting.first_sentence, _LONGEST, placeholder=" …")
    return f"{f'  --{setting.name} {setting.default}':44}  {said}".rstrip()


def _descriptions(prefix: str, section: Any, names: Sequence[str]) -> Iterator[SettingDescription]:
    hints, said = get_type_hints(type(section)), _docstrings(type(section))
    for name in names:
        value = getattr(section, name)
        shown = value if isinstance(value, str) else json.dumps(value).replace(" ", "")
        yield SettingDescription(f"{prefix}{name}", describe_type(hints[name]), shown, said.get(name, ""))


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """Field → the docstring below it, of the class or of those that it takes its fields from."""
    said: dict[str, str] = {}
    taken = (ResNetConfig, ViTConfig) if kind is ModelConfig else ()
    for each in (*taken, *reversed([base for base in kind.__mro__ if is_dataclass(base)])):
        body = ast.parse(inspect.getsource(each)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(field.target, ast.Name):
                said[field.target.id] = " ".join(ast.literal_eval(after.value).split())
    return said
