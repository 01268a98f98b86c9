"""Descriptions of the settings: name, type, default and the docstring beside the field in its dataclass."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vit.config.arguments import describe_type
from vit.config.model import ModelConfig
from vit.config.resnet import ResNetConfig
from vit.config.run import RunConfig
from vit.config.vit import ViTConfig

_TEXT_BEGINS, _LINE_ENDS = 46, 160


@dataclass(frozen=True)
class SettingDescription:
    name: str
    """Dotted, as on the command line."""
    values: str
    default: str
    text: str
    choices: tuple[str, ...] = ()
    """All values, where there are only some."""

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


def settings_table(kind: type[RunConfig], *, whole: bool = False) -> str:
    """The settings in lines of text, for `--help`; `whole`: with all that is said of each, not the first sentence."""
    return "\n\n".join(
        "\n".join([f"{name or 'the run'}:", *(_line(setting, whole) for setting in settings)])
        for name, settings in describe_settings(kind).items()
    )


def _line(setting: SettingDescription, whole: bool) -> str:
    said = setting.text if whole else setting.first_sentence
    choices = f" {{{', '.join(setting.choices)}}}" if setting.choices else ""
    name = f"  --{setting.name} {setting.default}"
    first, *more = wrap(f"{said}{choices}", _LINE_ENDS - _TEXT_BEGINS, break_on_hyphens=False)
    return "\n".join([f"{name:{_TEXT_BEGINS - 2}}  {first}", *(f"{'':{_TEXT_BEGINS}}{line}" for line in more)])


def _descriptions(prefix: str, section: Any, names: Sequence[str]) -> Iterator[SettingDescription]:
    hints, said = get_type_hints(type(section)), _docstrings(type(section))
    for name in names:
        value = getattr(section, name)
        shown = value if isinstance(value, str) else json.dumps(value).replace(" ", "")
        choices = tuple(getattr(section, "sets", ())) if name == "name" else ()
        yield SettingDescription(
            f"{prefix}{name}", describe_type(hints[name]), shown, said[name], choices or _choices(hints[name])
        )


def _choices(hint: Any) -> tuple[str, ...]:
    """The values of all `Literal`s in an annotation; none where there is but one."""
    if get_origin(hint) is Literal:
        found = tuple(map(str, get_args(hint)))
    else:
        found = tuple(choice for inner in get_args(hint) for choice in _choices(inner))
    return found if len(found) > 1 else ()


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """Field → the docstring below it, of the class or of its bases; of a model's fields, that of each architecture."""
    said: dict[str, str] = {}
    if kind is ModelConfig:
        said, of_resnets = _docstrings(ViTConfig), _docstrings(ResNetConfig)
        for name, text in of_resnets.items():
            if said.get(name) != text:
                said[name] = f"{said.get(name, '')} ResNets: {text[0].lower()}{text[1:]}".strip()
    for each in reversed([base for base in kind.__mro__ if is_dataclass(base)]):
        body = ast.parse(inspect.getsource(each)).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(field.target, ast.Name):
                said[field.target.id] = " ".join(ast.literal_eval(after.value).split())
    return said
