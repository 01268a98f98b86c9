"""A run's settings: a file, or those of an earlier run, with the command line's over them, and the origin of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from vit.config import OptimConfig, RunConfig, TrainConfig, check
from vit.config.model import ARCHITECTURE
from vit.config.rules import nearest_path
from vit.config.validation import flatten, make_settings, setting_types
from vit.config.yaml_files import read_yaml
from vit.settings.by_task import check_known, run_class
from vit.settings.command_line import read_overrides
from vit.settings.files import COMMAND_LINE, DEFAULT, FILE, RESET, SHRUNK, find_config, flat_settings, read_run_config
from vit.tasks import DEFAULT_TASK

Run = TypeVar("Run", bound=RunConfig)


@dataclass(frozen=True)
class ResolvedRun:
    config: RunConfig
    origins: dict[str, str]
    """Dotted setting → one of the origins in `vit/settings/files.py`."""


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
    kind = run_class(in_file, f"{path}: ")
    check_known(kind, in_file, f"{path}: ")
    given = read_overrides(kind, overrides)
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
    given = read_overrides(kind, overrides)
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
    kept, given = flat_settings(config), read_overrides(kind, overrides)
    for name in given:
        if name not in allowed and name.split(".")[0] not in allowed:
            others = f"what has: {', '.join(f'--{setting}' for setting in allowed)}"
            remedy = "to evaluate at another size give --image_size" if name == "model.image_size" else others
            raise ValueError(f"--{name}: it has no effect here; {remedy}")
    section: Any = get_type_hints(kind)["data"]
    if "data.name" in given and not _same_images(section, kept, given):
        its_own = kept["data.name"] == getattr(section, "folder_set", None)  # a folder of the user's own
        leaves = given["data.name"] in getattr(section, "rootless_sets", ()) or (
            its_own and given["data.name"] != kept["data.name"]
        )
        for name in (*getattr(section, "one_sets_settings", ()), *(["root"] if leaves else [])):
            del kept[f"data.{name}"]
    if str(given.get("search.beam_size")) == "1":
        kept.pop("search.length_penalty", None)  # of the beam that is not asked for
    return make_settings(kind, kept | given)


def _same_images(section: Any, kept: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether the command line names the set that the settings have already, in their folder or, where that makes no
    difference, in another one.
    """
    if kept["data.name"] != given["data.name"]:
        return False
    place, named = kept.get("data.root"), given.get("data.root")
    if named is None or getattr(section, "same_in_any_folder", False):
        return True
    return place is not None and Path(str(place)).resolve() == Path(str(named)).resolve()


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
