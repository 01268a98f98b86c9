"""A run's settings from a YAML file and the command line, with the origin of each. Rules of validity: `vit/config/`.

The `task` of a run decides which settings there are.
"""

from vit.settings.by_task import ends_setting
from vit.settings.differing import diff_runs, differences
from vit.settings.files import (
    COMMAND_LINE,
    DEFAULT,
    FILE,
    RESET,
    SHRUNK,
    WEIGHTS,
    dump_run_config,
    flat_settings,
    is_dumped,
    read_run_config,
    run_config_from,
)
from vit.settings.resolving import ResolvedRun, override, resolve_run, resumed_run

__all__ = [
    "COMMAND_LINE",
    "DEFAULT",
    "FILE",
    "RESET",
    "SHRUNK",
    "WEIGHTS",
    "ResolvedRun",
    "diff_runs",
    "differences",
    "dump_run_config",
    "ends_setting",
    "flat_settings",
    "is_dumped",
    "override",
    "read_run_config",
    "resolve_run",
    "resumed_run",
    "run_config_from",
]
