"""YAML files of settings: packaged configurations, and a run's own `config.yaml` with the origin of each value."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from vit.config import RunConfig, nearest
from vit.config.rules import nearest_path
from vit.config.validation import flatten, make_settings, setting_types
from vit.config.yaml_files import dump_yaml, packaged_configs, read_yaml
from vit.settings.by_task import run_class, tasks_with

# where a value is from, as it stands behind it in `config.yaml`
DEFAULT, FILE, COMMAND_LINE, SHRUNK = "default", "file", "command line", "shrunk with train.epochs"
RESET = "reset by another model"
WEIGHTS = "pretrained weights"


def find_config(name: str | Path, option: str = "--config") -> Path:
    """A YAML file, or the packaged configuration of that name.

    ValueError, naming the `option` that it was given with, where there is neither.
    """
    path = Path(name)
    if (path / "config.yaml").is_file():
        remedy = (
            f"continue it with vit train --resume {path}, or begin another one like it with {option} {path}/config.yaml"
        )
        raise ValueError(f"{option}: {str(name)!r} is a run; {remedy}")
    names = packaged_configs()
    if path.suffix and not os.path.exists(path):  # noqa: PTH110  Path.exists raises below a folder nobody may enter
        packaged = packaged_named(path)
        if near := f"did you mean {packaged!r}?" if packaged else nearest_path(path):
            raise ValueError(f"{option}: cannot read {str(name)!r}: No such file or directory; {near}")
    if path.suffix or path.is_file() or (path.exists() and str(name) not in names):  # a folder may have a recipe's name
        return path
    if str(name) not in names:
        near = nearest(str(name), names)
        if near.startswith("choose"):
            near = f"these are: {', '.join(sorted(names))}"
        raise ValueError(f"{option}: {str(name)!r} is neither a file nor a packaged configuration; {near}")
    return names[str(name)]


def packaged_named(path: Path) -> str:
    """The packaged configuration that is called as a file, or nothing: `digits_vit` for `digits_vit.yaml`."""
    names = packaged_configs()
    return next((name for name in (str(path.with_suffix("")), path.stem) if name in names), "")


def read_run_config(path: Path) -> tuple[RunConfig, dict[str, str]]:
    """The settings and origins of a run folder's `config.yaml`. ValueError, naming it, as in `resolve_run`."""
    return run_config_from(read_yaml(path, "run"), str(path)), _origins_in(path.read_text())


def run_config_from(content: Mapping[str, Any], where: str = "checkpoint") -> RunConfig:
    """The settings from nested dictionaries, as a checkpoint's state holds them. ValueError as in `resolve_run`.

    They were valid when they were written; `where` begins the message if they no longer are. Settings that only other
    tasks have are left out: older runs have them, at values without effect.
    """
    try:
        kind = run_class(content)
        known = setting_types(kind)
        return make_settings(kind, {k: v for k, v in flatten(content).items() if k in known or not tasks_with(k)})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def dump_run_config(config: RunConfig, origins: Mapping[str, str]) -> str:
    """YAML of the settings, with the origin of each value as a comment."""
    lines = []
    for item in fields(config):
        value = getattr(config, item.name)
        if is_dataclass(value):
            lines.append(f"{item.name}:")
            lines += [_line(f"{item.name}.{f.name}", getattr(value, f.name), origins, "  ") for f in fields(value)]
        else:
            lines.append(_line(item.name, value, origins, ""))
    return "\n".join(lines) + "\n"


def is_dumped(text: str) -> bool:
    """Whether the text is a file of `dump_run_config`, whose every value has its origin behind it."""
    values = [line for line in text.splitlines() if line.strip() and not line.endswith(":")]
    return bool(values) and all("  # " in line for line in values)


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """Dotted name → value, lists for tuples, as JSON has them."""
    return flatten(json.loads(json.dumps(asdict(config))))


def _line(name: str, value: Any, origins: Mapping[str, str], indent: str) -> str:
    plain = json.loads(json.dumps(value))
    return f"{indent}{name.split('.')[-1]}: {dump_yaml(plain)}  # {origins.get(name, DEFAULT)}"


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
