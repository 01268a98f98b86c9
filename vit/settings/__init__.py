"""A run's settings from a YAML file and the command line, with the origin of each. Rules of validity: `vit/config/`.

The `task` of a run decides which settings there are.
"""

from vit.settings.differing import diff_runs, differences, read_summary
from vit.settings.files import (
    COMMAND_LINE,
    DEFAULT,
    FILE,
    RESET,
    SHRUNK,
    WEIGHTS,
    dump_run_config,
    find_config,
    flat_settings,
    is_dumped,
    read_run_config,
    run_config_from,
)
from vit.settings.of_tasks import ends_setting
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
    "find_config",
    "flat_settings",
    "is_dumped",
    "override",
    "read_run_config",
    "read_summary",
    "resolve_run",
    "resumed_run",
    "run_config_from",
]
