"""Building settings from plain values, with types checked by pydantic.

The dataclasses' own rules (`rules.py`) run as each section is made. Every error is one line that names the setting.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from vit.config.arguments import describe_type
from vit.config.other_names import OTHER_NAMES
from vit.config.rules import check, nearest, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_LONGEST_NAME = 80
Settings = TypeVar("Settings", bound="DataclassInstance")


def make_settings(kind: type[Settings], content: Mapping[str, Any], section: str = "") -> Settings:
    """Build the dataclass `kind` from plain values, nested or by dotted names.

    Names in errors are prefixed with `section`. ValueError, one line, for an unknown name (with the nearest one), a
    value of another type and a broken rule. Types are strict: 1.0, true and "1" are not integers, but 1 is a number.
    """
    prefix = f"{section}." if section else ""
    given = flatten(content)
    refuse_unknown(kind, given, prefix)
    complete = flatten(asdict(kind())) | given  # a run may have other defaults than the section itself
    for name, value in given.items():
        rule = "it is not text in UTF-8; give the file or folder another name"
        check(not isinstance(value, str) or _is_unicode(value), f"{prefix}{name}", shown(value), rule)
    try:
        # As JSON, because strict checks then accept lists for tuples and mappings for dataclasses.
        return _adapter(kind).validate_json(json.dumps(_nest(complete), default=_plain_value), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "value_error":  # raised by a rule of the dataclass
            raise first["ctx"]["error"] from None
        types = setting_types(kind)
        places = (".".join(map(str, first["loc"][:depth])) for depth in (1, 2))
        name = next(place for place in places if place in types)
        value = complete[name]
        text = json.dumps(value) if value is None or isinstance(value, bool) else shown(value)
        raise ValueError(f"{prefix}{name}: {text} is not valid: it must be {describe_type(types[name])}") from None


def _is_unicode(text: str) -> bool:
    """False for a name in bytes that are not UTF-8, which Python gives as halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_unknown(kind: type[Any], names: Iterable[str], prefix: str = "") -> None:
    """Raise ValueError for the first dotted name that is not a setting of the dataclass, with the nearest one."""
    known = setting_types(kind)
    sections = {name.split(".")[0] for name in known if "." in name}
    for name in names:
        if len(name) > _LONGEST_NAME or not name.isprintable():
            raise ValueError(f"{prefix}{shown(name)}: there is no such setting")
        if name in sections:
            example = min(setting for setting in known if setting.startswith(f"{name}."))
            raise ValueError(f"{prefix}{name}: it is a section; set one of its settings, such as {example}")
        if name not in known:
            if ours := our_name(name, prefix, known):
                raise ValueError(f"{prefix}{name}: there is no such setting; here it is called {ours}")
            inside = [setting for setting in known if setting.startswith(f"{name.split('.')[0]}.")]
            elsewhere = [setting for setting in known if setting.rpartition(".")[2] == name.rpartition(".")[2]]
            suggestion = f"did you mean {elsewhere[0]!r}?" if len(elsewhere) == 1 else nearest(name, inside or known)
            if sections and not inside and not suggestion.startswith("did you mean"):
                suggestion = nearest(
                    name, {setting.split(".")[0] for setting in known}
                )  # not the names of all settings
            raise ValueError(f"{prefix}{name}: there is no such setting; {suggestion}")


def our_name(name: str, prefix: str, known: Mapping[str, Any]) -> str | None:
    """The known setting that another library calls so, if there is one; it has no section where `prefix` names one."""
    section, _, last = name.rpartition(".")
    for setting, others in OTHER_NAMES.items():
        home, _, own = setting.rpartition(".")
        if last in others and setting in known and section in ("", home):
            return setting
        if last in others and own in known and prefix == f"{home}.":
            return own
    return None


def setting_types(kind: type[Any]) -> dict[str, Any]:
    """Map dotted names to types, for the settings of a dataclass and of the dataclasses in it."""
    key: Any = kind  # to mypy, a class of dataclasses would be no key of a cache
    return _read_types(key)


@cache
def _read_types(kind: Any) -> dict[str, Any]:
    types: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for name, hint in ((item.name, hints[item.name]) for item in fields(kind)):
        if is_dataclass(hint) and isinstance(hint, type):
            types |= {f"{name}.{inner}": inner_hint for inner, inner_hint in setting_types(hint).items()}
        else:
            types[name] = hint
    return types


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        section, _, setting = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[setting] = value
    return nested


def _plain_value(value: Any) -> Any:
    """The number or list in a scalar or array of numpy or torch; anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


@cache
def _adapter(kind: type[Settings]) -> TypeAdapter[Settings]:
    return TypeAdapter(kind)
