"""Settings on the command line: `--optim.lr 3e-4`, `--lr 3e-4`, `--data PLACE`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from vit.config import RunConfig, check, nearest
from vit.config.arguments import describe_type
from vit.config.rules import nearest_path
from vit.config.validation import our_name, setting_types
from vit.config.yaml_files import load_yaml
from vit.settings.by_task import check_known
from vit.settings.files import find_config, packaged_named

_UNUSUAL_NUMBER = re.compile(r"[-+]?0\d+|[-+]?\d+(:\d+)+(\.\d*)?")
"""YAML reads 010 as eight, and 1:30 as ninety."""


def read_overrides(kind: type[RunConfig], words: Sequence[str]) -> dict[str, Any]:
    """Dotted setting → value, from `--a.b value` and `--a.b=value`. ValueError for any other word."""
    types, given, said = setting_types(kind), dict[str, Any](), dict[str, str]()
    remaining = list(words)
    while remaining:
        option, has_value, word = remaining.pop(0).partition("=")
        if not option.startswith("--"):
            raise ValueError(f"{option!r} is not expected here: {_meant_by(option)}")
        name = _full_name(kind, option[2:].replace("-", "_"))
        if not has_value:
            if not remaining or remaining[0].startswith("--"):  # -1 is a value
                rule = "a folder or a name" if name == "data" else describe_type(types[name])
                raise ValueError(f"{option}: its value is missing; it must be {rule}")
            word = remaining.pop(0)
        if name == "data":
            found = _data_at(word, get_type_hints(kind)["data"])
        else:
            found = {name: word if name == "task" else _read_value(word, types[name])}
        for setting in (each for each in found if each in given and given[each] != found[each]):
            raise ValueError(f"{option}: {setting} is {given[setting]!r} already, by {said[setting]}; give it once")
        given |= found
        said |= dict.fromkeys(found, option)
    return given


def _meant_by(word: str) -> str:
    """An answer to a word where an option was expected."""
    from vit.runs import holds_checkpoints

    if holds_checkpoints(Path(word)):
        return (
            f"it is a run; `vit train --resume {word}` continues it, --model.pretrained {word} begins with its weights"
        )
    if Path(word).is_dir():
        return f"did you mean --data {word}?"
    if Path(word).suffix in (".yaml", ".yml") and not os.path.exists(word):  # noqa: PTH110  as in `find_config`
        packaged, near = packaged_named(Path(word)), nearest_path(Path(word))
        return f"did you mean --config {packaged}?" if packaged else "; ".join(filter(None, ["it is no file", near]))
    try:
        find_config(word)
    except ValueError:
        return "a setting is given as --section.setting VALUE"
    is_yaml = Path(word).suffix in ("", ".yaml", ".yml")
    return f"did you mean --config {word}?" if is_yaml else "a setting is given as --section.setting VALUE"


def _full_name(kind: type[RunConfig], name: str) -> str:
    """The setting that an option means: its dotted name, or its last part where no other setting ends so.

    `--model` is `model.name`; `data` stands for itself where the task's data has a form `--data PLACE`.
    """
    types = setting_types(kind)
    if name in types or (name == "data" and hasattr(get_type_hints(kind)["data"], "folder_set")):
        return name
    if name == "model" and "model.name" in types:
        return "model.name"
    last_parts = [setting for setting in types if setting.endswith(f".{name}")]
    if len(last_parts) > 1:
        raise ValueError(f"--{name}: it could be {' or '.join(f'--{setting}' for setting in last_parts)}; give one")
    if not last_parts:
        if ours := our_name(name, "", types):
            raise ValueError(f"--{name}: there is no such setting; here it is called --{ours}")
        if joined := [setting for setting in types if setting.replace(".", "_") == name]:
            raise ValueError(f"--{name}: there is no such setting; did you mean --{joined[0]}?")
        if not name.isprintable():
            check_known(kind, [name], "--")
        near = nearest(name, {setting.rpartition(".")[2] for setting in types})
        if "." not in name and near.startswith("did you mean"):
            raise ValueError(f"--{name}: there is no such setting; {near}")
        check_known(kind, [name], "--")
    return last_parts[0]


def _data_at(place: str, section: Any) -> dict[str, str]:
    """The settings that `--data PLACE` stands for: a data set's name, or a folder."""
    if place.partition(":")[0] in {name.partition(":")[0] for name in section.sets}:
        return {"data.name": place}
    exists = Path(place).is_dir() or (section.folder_set == "imagefolder" and Path(place).is_file())
    if not exists:
        several, near = len(section.sets) > 1, nearest_path(Path(place))
        rule = f"it is neither a folder nor one of {', '.join(section.sets)}" if several else "it is no folder"
        check(False, "--data", place, f"{rule}; {near}" if near else rule)
    from vit.runs import holds_checkpoints

    rule = f"it is a run, not images; `vit train --resume {place}` continues it"
    check(not holds_checkpoints(Path(place)), "--data", place, rule)
    return {"data.name": section.folder_set, "data.root": place}


def _read_value(word: str, hint: Any) -> Any:
    """The word as YAML reads it; where the setting takes text, the word itself."""
    kinds = (hint,) if get_origin(hint) is tuple else get_args(hint) or (hint,)
    if str in kinds and not word.strip():
        return word  # which YAML reads as null
    try:
        value = load_yaml(word)
    except yaml.YAMLError:
        return word
    takes_text = str in kinds or (isinstance(value, bool) and bool not in kinds)  # `yes` is no number
    takes_text |= isinstance(value, (int, float)) and _UNUSUAL_NUMBER.fullmatch(word) is not None
    return word if takes_text and not (value is None and NoneType in kinds) else value
