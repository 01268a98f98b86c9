"""Which settings there are: the `task` of a run decides that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vit.config import RunConfig, nearest
from vit.config.validation import refuse_unknown, setting_types
from vit.tasks import DEFAULT_TASK, TASKS


def ends_setting(name: str) -> bool:
    """Whether some task has that setting, or one of that last part, as `epochs`."""
    return any(
        name in (setting, setting.rpartition(".")[2])
        for task in TASKS.values()
        for setting in setting_types(task.run_config)
    )


def run_class(content: Mapping[str, Any], prefix: str = "") -> type[RunConfig]:
    """The settings class of the task that a file names."""
    task = content.get("task", DEFAULT_TASK)
    if not isinstance(task, str) or task not in TASKS:
        raise ValueError(f"{prefix}task: {task!r} is not valid: {nearest(str(task), TASKS)}")
    return TASKS[task].run_config


def check_known(kind: type[RunConfig], names: Iterable[str], prefix: str) -> None:
    """ValueError for a setting that this kind of run does not have, naming the tasks that do, or the nearest one."""
    for name in names:
        if name not in setting_types(kind) and (tasks := tasks_with(name)):
            raise ValueError(f"{prefix}{name}: there is no such setting here, only for task {' or '.join(tasks)}")
    refuse_unknown(kind, names, prefix)


def tasks_with(name: str) -> list[str]:
    """The tasks that have a setting."""
    return [task for task, folder in TASKS.items() if name in setting_types(folder.run_config)]
