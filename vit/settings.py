"""From YAML file and command line to a run's settings, and where each came from. What is valid, config says.

The `task` of a run says which settings there are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from jsonargparse import ActionConfigFile, ArgumentError, ArgumentParser

from vit.config import RUNS, RunConfig, nearest

DEFAULT, FILE, COMMAND_LINE = "default", "file", "command line"


@dataclass(frozen=True)
class ResolvedRun:
    config: RunConfig
    origins: dict[str, str]
    """Dotted setting → default, file or command line."""


def resolve_run(config_file: Path, overrides: Sequence[str] = ()) -> ResolvedRun:
    """Read a YAML file and put the command line's dotted overrides (`--optim.lr 3e-4`) over it.

    ValueError, one line, for a missing file, an unknown key (with the nearest known one), a wrong type, a broken rule.
    """
    in_file = flatten(_read_yaml(config_file, "--config"))
    task = _task(in_file, f"{config_file}: ")
    _refuse_unknown(task, in_file, f"{config_file}: ")
    _refuse_unknown(task, _override_names(overrides), "--")
    parser = _parser(task)
    try:
        settings = parser.parse_args(["--config", str(config_file), *overrides])
        on_command_line = parser.parse_args(list(overrides), defaults=False)
    except ArgumentError as error:
        raise ValueError(_one_line(str(error))) from error
    given = {**dict.fromkeys(in_file, FILE), **dict.fromkeys(vars(on_command_line.as_flat()), COMMAND_LINE)}
    config = _build(task, settings)
    return ResolvedRun(config, {key: given.get(key, DEFAULT) for key in flat_settings(config)})


def override(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The settings with dotted overrides (`--data.root PATH`) put over them. ValueError as in `resolve_run`."""
    task = config.task
    _refuse_unknown(task, _override_names(overrides), "--")
    parser = _parser(task)
    try:
        settings = parser.parse_object(asdict(config))
        settings.update(parser.parse_args(list(overrides), defaults=False))
    except ArgumentError as error:
        raise ValueError(_one_line(str(error))) from error
    return _build(task, settings)


def check_overrides(
    config: RunConfig, overrides: Sequence[str], allowed: Sequence[str], remedies: dict[str, str]
) -> None:
    """ValueError for an override that is none of `allowed`, which are settings and sections.

    `remedies`: setting → the option that does what the user may have meant.
    """
    names = _override_names(overrides)
    _refuse_unknown(config.task, names, "--")
    for name in names:
        if name not in allowed and name.split(".")[0] not in allowed:
            remedy = remedies.get(name, f"what has: {', '.join(f'--{setting}' for setting in allowed)}")
            raise ValueError(f"--{name}: it has no effect here; {remedy}")


def read_run_config(path: Path) -> tuple[RunConfig, dict[str, str]]:
    """The settings and origins of a run folder's `config.yaml`. ValueError, naming it, as in `resolve_run`."""
    content = _read_yaml(path, "run")
    return _from_nested(content, str(path)), _origins_in(path.read_text())


def run_config_from(content: dict[str, Any]) -> RunConfig:
    """The settings from nested dictionaries, as a checkpoint's state holds them. ValueError as in `resolve_run`."""
    return _from_nested(content, "checkpoint")


def _from_nested(content: dict[str, Any], where: str) -> RunConfig:
    """Settings that were valid when they were written; `where` begins the complaint if they no longer are."""
    flat = flatten(content)
    task = _task(flat, f"{where}: ")
    _refuse_unknown(task, flat, f"{where}: ")
    try:
        return _build(task, _parser(task).parse_object(content))
    except ArgumentError as error:
        raise ValueError(f"{where}: {_one_line(str(error))}") from error


def dump_run_config(config: RunConfig, origins: dict[str, str]) -> str:
    """YAML that reads back to the same settings, each line saying where its value came from."""
    lines = []
    for item in fields(config):
        value = getattr(config, item.name)
        if is_dataclass(value):
            lines.append(f"{item.name}:")
            lines += [_line(f"{item.name}.{f.name}", getattr(value, f.name), origins, "  ") for f in fields(value)]
        else:
            lines.append(_line(item.name, value, origins, ""))
    return "\n".join(lines) + "\n"


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """Dotted name → value, lists for tuples, as JSON has them."""
    return flatten(json.loads(json.dumps(asdict(config))))


def flatten(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def differences(first: RunConfig, second: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted name → both values, for the settings that differ."""
    ours, theirs = flat_settings(first), flat_settings(second)
    keys = dict.fromkeys((*ours, *theirs))  # tasks differ in what can be set
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


# ------------------------------------------------------------------ parts


def _task(flat: dict[str, Any], prefix: str) -> str:
    """The task that a file names, which says what can be set."""
    task = flat.get("task", "classification")
    if not isinstance(task, str) or task not in RUNS:
        raise ValueError(f"{prefix}task: {task!r} is not valid: {nearest(str(task), RUNS)}")
    return task


@cache
def _parser(task: str) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_class_arguments(RUNS[task], None)
    return parser


def _build(task: str, settings: Any) -> RunConfig:
    """jsonargparse lets a null pass wherever a number is asked for."""
    optional = _optional(task)
    for name, value in vars(settings.as_flat()).items():
        if value is None and name not in optional and name != "config":
            raise ValueError(f"{name}: null is not valid: it must have a value")
    settings = _parser(task).instantiate(settings)
    return RUNS[task](**{item.name: getattr(settings, item.name) for item in fields(RUNS[task])})


@cache
def _optional(task: str) -> set[str]:
    """The settings that may be null."""
    hints = {
        section: get_type_hints(type(value)) for section, value in vars(RUNS[task]()).items() if is_dataclass(value)
    }
    nested = {f"{section}.{name}": hint for section, types in hints.items() for name, hint in types.items()}
    return {name for name, hint in (nested | get_type_hints(RUNS[task])).items() if type(None) in get_args(hint)}


class _OnceEach(yaml.SafeLoader):
    """YAML would let the second of two settings of one name win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key.value, str)]
        for name in names:
            if names.count(name) > 1:
                raise yaml.constructor.ConstructorError(
                    problem=f"{name!r} is there twice", problem_mark=node.start_mark
                )
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path, option: str) -> dict[str, Any]:
    """`option` begins the complaint about a file that cannot be read."""
    try:
        content = yaml.load(path.read_text(), _OnceEach)
    except OSError as error:
        raise ValueError(f"{option}: cannot read {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{option}: {str(path)!r} is not a text file") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{option}: {str(path)!r} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{option}: {str(path)!r} must hold sections such as model: and data:")
    return content


@cache
def _known(task: str) -> set[str]:
    return set(flat_settings(RUNS[task]()))


def _refuse_unknown(task: str, names: Any, prefix: str) -> None:
    known = _known(task)
    sections = {name.split(".")[0] for name in known if "." in name}
    for name in names:
        if name in sections:
            example = min(setting for setting in known if setting.startswith(f"{name}."))
            raise ValueError(f"{prefix}{name}: it is a section; set what is in it, such as {example}")
        if name not in known:
            inside = {setting for setting in known if setting.startswith(f"{name.split('.')[0]}.")}
            raise ValueError(
                f"{prefix}{name}: there is no such setting; {_nearest_setting(name, inside or known, known)}"
            )


def _nearest_setting(name: str, choices: set[str], known: set[str]) -> str:
    """`nearest`, with the sections rather than a hundred names where none is near."""
    suggestion = nearest(name, choices)
    few = len(choices) < len(known) or suggestion.startswith("did you mean")
    return suggestion if few else nearest(name, {setting.split(".")[0] for setting in choices})


def _override_names(overrides: Sequence[str]) -> list[str]:
    """The names in `--a.b value` and `--a.b=value`. A number such as -1 is a value."""
    return [word[2:].split("=")[0] for word in overrides if word.startswith("--")]


def _one_line(message: str) -> str:
    """jsonargparse's several lines about a wrong type, as `name: value is not valid: it must be …`."""
    name = re.search(r'key "([^"]+)"', message)
    value = re.search(r"(?:Got value|Given value): (.*)", message)
    expected = [
        what.replace("typing.", "").replace("<class '", "").replace("'>", "").replace("NoneType", "null")
        for what in re.findall(r"Expected an? (.+?)(?:\.\s|\.?$|\. Got)", message, flags=re.MULTILINE)
    ]
    if name and value and expected:
        allowed = " or ".join(dict.fromkeys(expected))
        allowed = re.sub(r"^tuple$", "a list such as [0.5, 1.0]", allowed)
        allowed = re.sub(r"Literal\[(.+?)\]", r"one of \1", allowed)
        return f"{name[1]}: {value[1].strip()!r} is not valid: it must be {allowed}"
    return " ".join(message.split())


def _line(name: str, value: Any, origins: dict[str, str], indent: str) -> str:
    plain = json.loads(json.dumps(value))
    text = yaml.safe_dump(plain, default_flow_style=True, width=1000).replace("\n...", "").strip()
    return f"{indent}{name.split('.')[-1]}: {text}  # {origins.get(name, DEFAULT)}"


def _origins_in(text: str) -> dict[str, str]:
    origins, section = {}, ""
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        if not line.startswith(" "):
            section = "" if rest.strip() else f"{key}."
        _, mark, origin = rest.rpartition("  # ")
        if mark:
            origins[section + key.strip() if line.startswith(" ") else key] = origin
    return origins


# ------------------------------------------------------------------ two runs beside each other


def diff_runs(first: Path, second: Path) -> str:
    """A table of the settings (with their origins) and the results in which two run folders differ."""
    (ours, our_origins), (theirs, their_origins) = (read_run_config(_config_of(run)) for run in (first, second))
    rows = [
        (key, f"{a}  ({our_origins.get(key, DEFAULT)})", f"{b}  ({their_origins.get(key, DEFAULT)})")
        for key, (a, b) in differences(ours, theirs).items()
    ]
    results = [_results_of(run) for run in (first, second)]
    for key in results[0] | results[1]:
        a, b = (result.get(key, "–") for result in results)
        if a != b:
            rows.append((key, str(a), str(b)))
    table = [("", str(first), str(second)), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(2)]
    return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in table)


def _config_of(run: Path) -> Path:
    path = run / "config.yaml"
    if not path.is_file():
        raise ValueError(f"run: {str(run)!r} is not a run folder (it has no config.yaml)")
    return path


def _results_of(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    try:
        return flatten(json.loads(path.read_text())) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"run: {str(path)!r} is not JSON: {error}") from error
