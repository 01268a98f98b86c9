"""A run's settings from a YAML file and the command line, with the origin of each. Rules of validity: `vit/config/`.

The `task` of a run decides which settings there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from vit.config import OptimConfig, RunConfig, TrainConfig, check, nearest
from vit.config.arguments import describe_type
from vit.config.model import ARCHITECTURE
from vit.config.rules import nearest_path
from vit.config.validation import flatten, make_settings, our_name, refuse_unknown, setting_types
from vit.config.yaml_files import load_yaml, packaged_configs, read_yaml
from vit.tasks import DEFAULT_TASK, TASKS

Run = TypeVar("Run", bound=RunConfig)

DEFAULT, FILE, COMMAND_LINE, SHRUNK = "default", "file", "command line", "shrunk with train.epochs"
RESET = "reset by another model"
WEIGHTS = "pretrained weights"


@dataclass(frozen=True)
class ResolvedRun:
    config: RunConfig
    origins: dict[str, str]
    """Dotted setting → one of the origins above."""


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
    if path.suffix or path.exists():
        return path
    names = packaged_configs()
    if str(name) not in names:
        near = nearest(str(name), names)
        if near.startswith("choose"):
            near = f"these are: {', '.join(sorted(names))}"
        raise ValueError(f"{option}: {str(name)!r} is neither a file nor a packaged configuration; {near}")
    return names[str(name)]


def resolve_run(config_file: str | Path, overrides: Sequence[str] = (), option: str = "--config") -> ResolvedRun:
    """Read a YAML file, or a packaged configuration by name, and put the command line's `--optim.lr 3e-4` over it.

    A warm-up (or a time in which images grow) that stands in the file, and for which the command line's `train.epochs`
    leaves no room, shrinks in proportion to the epochs. A model that the command line names has its own shape, not that
    of the file's model, and an optimizer its own momentum and betas.

    ValueError, one line: for a missing file (naming the `option` that it was given with), an unknown key (with the
    nearest known one), a wrong type, a broken rule.
    """
    path = find_config(config_file, option)
    in_file = flatten(read_yaml(path, option))
    kind = _run_class(in_file, f"{path}: ")
    _refuse_unknown(kind, in_file, f"{path}: ")
    given = _read_overrides(kind, overrides)
    task = in_file.get("task", DEFAULT_TASK)
    rule = f"the file decides the task, and {config_file} is of {task!r}; choose another {option}"
    check(given.get("task", task) == task, "--task", given.get("task"), rule)
    shrunk = _shrink(in_file, given)
    reset = [*_shape_of_another_model(kind, in_file, given), *_of_another_optimizer(in_file, given)]
    kept = {name: value for name, value in in_file.items() if name not in reset}
    config = make_settings(kind, kept | given | shrunk)
    origins = {
        **dict.fromkeys(flat_settings(config), DEFAULT),
        **dict.fromkeys(in_file, FILE),
        **dict.fromkeys(reset, RESET),
        **dict.fromkeys(given, COMMAND_LINE),
        **dict.fromkeys(shrunk, SHRUNK),
    }
    return ResolvedRun(config, origins)


def resumed_run(run: Path, overrides: Sequence[str] = ()) -> ResolvedRun:
    """The settings and origins in a run folder's `config.yaml`, with the command line's put over them.

    ValueError as in `resolve_run`, and for a folder without that file.
    """
    path = run / "config.yaml"
    if not path.is_file():
        inside = sorted(run.glob("*/config.yaml"), key=lambda file: file.stat().st_mtime)
        with_settings = (folder for folder in run.parents if (folder / "config.yaml").is_file())
        if around := next((folder for folder in with_settings if (folder / "checkpoints").is_dir()), None):
            near = f"did you mean the run that it belongs to, {str(around)!r}?"
        else:
            near = f"did you mean {str(inside[-1].parent)!r}?" if inside else nearest_path(run)
        raise ValueError(f"--resume: {str(run)!r} is not a run folder (it has no config.yaml){near and f'; {near}'}")
    config, origins = read_run_config(path)
    kind = type(config)
    given = _read_overrides(kind, overrides)
    check("output_dir" not in given, "--output_dir", given.get("output_dir"), f"--resume {run} names the folder")
    flat = flat_settings(config)
    asked = _numbers(given).get("train.epochs", config.train.epochs)
    for name, beyond in (("optim.warmup_epochs", 0), ("augment.growing_epochs", 1)):  # they do not shrink any more
        least = math.ceil(flat.get(name) or 0) + beyond
        rule = f"the run in {str(run)!r} has {name} {flat.get(name)}; take {least} or more"
        check(asked >= min(least, config.train.epochs), "train.epochs", asked, rule)
    changed = make_settings(kind, flat | given)
    return ResolvedRun(changed, origins | dict.fromkeys(given, COMMAND_LINE))


def override(config: Run, overrides: Sequence[str], allowed: Sequence[str]) -> Run:
    """The settings of a trained run with the command line's (`--data.root PATH`) put over them.

    `allowed`: the settings and sections that have an effect. Where another data set is named, settings that belong to
    the old one return to their defaults. ValueError as in `resolve_run`, and for an override without effect.
    """
    kind = type(config)
    kept, given = flat_settings(config), _read_overrides(kind, overrides)
    for name in given:
        if name not in allowed and name.split(".")[0] not in allowed:
            others = f"what has: {', '.join(f'--{setting}' for setting in allowed)}"
            remedy = "to evaluate at another size give --image_size" if name == "model.image_size" else others
            raise ValueError(f"--{name}: it has no effect here; {remedy}")
    if "data.name" in given and not _same_folder(kept, given):
        section: Any = get_type_hints(kind)["data"]
        root = ("root",) if given["data.name"] in getattr(section, "rootless_sets", ()) else ()
        for name in (*getattr(section, "one_sets_settings", ()), *root):
            del kept[f"data.{name}"]
    return make_settings(kind, kept | given)


def _same_folder(kept: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether the command line names the folder that the settings have already."""
    places = [settings.get("data.root") for settings in (kept, given)]
    same_set = kept["data.name"] == given["data.name"]
    return same_set and None not in places and len({Path(str(place)).resolve() for place in places}) == 1


def read_run_config(path: Path) -> tuple[RunConfig, dict[str, str]]:
    """The settings and origins of a run folder's `config.yaml`. ValueError, naming it, as in `resolve_run`."""
    return run_config_from(read_yaml(path, "run"), str(path)), _origins_in(path.read_text())


def run_config_from(content: Mapping[str, Any], where: str = "checkpoint") -> RunConfig:
    """The settings from nested dictionaries, as a checkpoint's state holds them. ValueError as in `resolve_run`.

    They were valid when they were written; `where` begins the message if they no longer are. Settings that only other
    tasks have are left out: older runs have them, at values without effect.
    """
    try:
        kind = _run_class(content)
        known = setting_types(kind)
        return make_settings(kind, {k: v for k, v in flatten(content).items() if k in known or not _tasks_with(k)})
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


def differences(first: RunConfig, second: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Dotted name → both values, for the settings that differ."""
    ours, theirs = flat_settings(first), flat_settings(second)
    keys = dict.fromkeys((*ours, *theirs))  # tasks have different settings
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def _run_class(content: Mapping[str, Any], prefix: str = "") -> type[RunConfig]:
    """The settings class of the task that a file names."""
    task = content.get("task", DEFAULT_TASK)
    if not isinstance(task, str) or task not in TASKS:
        raise ValueError(f"{prefix}task: {task!r} is not valid: {nearest(str(task), TASKS)}")
    return TASKS[task].run_config


def _refuse_unknown(kind: type[RunConfig], names: Iterable[str], prefix: str) -> None:
    """As `refuse_unknown`, but a setting of other tasks is answered with these."""
    for name in names:
        if name not in setting_types(kind) and (tasks := _tasks_with(name)):
            raise ValueError(f"{prefix}{name}: there is no such setting here, only for task {' or '.join(tasks)}")
    refuse_unknown(kind, names, prefix)


def ends_setting(name: str) -> bool:
    """Whether some task has that setting, or one of that last part, as `epochs`."""
    return any(
        name in (setting, setting.rpartition(".")[2])
        for task in TASKS.values()
        for setting in setting_types(task.run_config)
    )


def _tasks_with(name: str) -> list[str]:
    return [task for task, folder in TASKS.items() if name in setting_types(folder.run_config)]


def _shape_of_another_model(kind: type[RunConfig], in_file: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The file's settings that describe its own model where the command line names another.

    Pretrained weights name their architecture, unless they are a single file. A file that names no model means its
    settings for any.
    """
    own = in_file.get("model.name")
    if own is None or "model.pretrained" not in setting_types(kind):
        return []
    named = given.get("model.name", own) != own
    weights = given.get("model.pretrained")
    brings_its_own = weights is not None and "model.pretrained" not in in_file and not Path(str(weights)).is_file()
    if not (named or brings_its_own):
        return []
    settings = {*ARCHITECTURE, "name"} if brings_its_own else ARCHITECTURE
    return [
        name
        for name, value in in_file.items()
        if name.startswith("model.") and name[6:] in settings and value is not None and name not in given
    ]


def _of_another_optimizer(in_file: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The file's settings that are its own optimizer's where the command line names another."""
    own = in_file.get("optim.name", OptimConfig.name)
    if given.get("optim.name", own) == own:
        return []
    return [name for name in ("optim.momentum", "optim.betas") if name in in_file and name not in given]


def _shrink(in_file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """New values of the file's settings that do not fit into the command line's smaller number of epochs."""
    file = _numbers({"train.epochs": TrainConfig().epochs} | dict(in_file))
    before, after = file.get("train.epochs", 0), _numbers(given).get("train.epochs", 0)
    shrunk: dict[str, Any] = {}
    if not 0 < after < before:
        return shrunk
    warmup = file.get("optim.warmup_epochs", 0)
    if after <= warmup <= before and "optim.warmup_epochs" not in given:
        shrunk["optim.warmup_epochs"] = warmup * after / before
    growing = file.get("augment.growing_epochs", 0)
    if after <= growing < before and not {"augment.growing_epochs", "augment.first_image_size"} & set(given):
        shrunk["augment.growing_epochs"] = growing * after // before
        if growing * after < before:
            shrunk["augment.first_image_size"] = None  # no epoch is left for smaller images
            if "augment.size_step" in file.keys() - given.keys():
                shrunk["augment.size_step"] = 1
    return shrunk


def _numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if type(value) in (int, float)}


# ------------------------------------------------------------------ the command line


def _read_overrides(kind: type[RunConfig], words: Sequence[str]) -> dict[str, Any]:
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
            _refuse_unknown(kind, [name], "--")
        near = nearest(name, {setting.rpartition(".")[2] for setting in types})
        if "." not in name and near.startswith("did you mean"):
            raise ValueError(f"--{name}: there is no such setting; {near}")
        _refuse_unknown(kind, [name], "--")
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
    return word if takes_text and not (value is None and NoneType in kinds) else value


# ------------------------------------------------------------------ files


def _line(name: str, value: Any, origins: Mapping[str, str], indent: str) -> str:
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


def read_summary(run: Path) -> dict[str, Any]:
    """A run's `summary.json`; empty where it is not finished. ValueError for a file of anything else."""
    path = run / "summary.json"
    try:
        content = json.loads(path.read_text()) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"run: {str(path)!r} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"run: {str(path)!r} holds no results: it must be an object of names and numbers")
    return content


def diff_runs(first: Path, second: Path) -> str:
    """A table of the settings (with their origins) and the results in which two run folders differ."""
    for run in (first, second):
        if not (run / "config.yaml").is_file():
            raise ValueError(f"run: {str(run)!r} is not a run folder (it has no config.yaml)")
    (ours, our_origins), (theirs, their_origins) = (read_run_config(run / "config.yaml") for run in (first, second))
    rows = [
        (key, f"{a}  ({our_origins.get(key, DEFAULT)})", f"{b}  ({their_origins.get(key, DEFAULT)})")
        for key, (a, b) in differences(ours, theirs).items()
    ]
    results: list[dict[str, Any]] = [{}, {}]
    for run, result in zip((first, second), results, strict=True):
        result |= flatten(read_summary(run))
    for key in results[0] | results[1]:
        a, b = (result.get(key, "–") for result in results)
        if a != b:
            rows.append((key, str(a), str(b)))
    table = [("", str(first), str(second)), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(2)]
    return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}".rstrip() for row in table)
