"""Imports of other packages without coverage's tracing, in the processes that tests start.

Tracing makes such an import half as long again, and each of these processes imports torch. What is measured are the
lines of vit/, which are traced as before.
"""

from __future__ import annotations

import builtins
import os
import sys
from typing import Any

_OURS = {"vit", "benchmarks", "results", "docs", "notebooks", "tests"}
_import = builtins.__import__


def _untraced_import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    tracer = sys.gettrace()
    package = (globals or {}).get("__package__") or "" if level else name
    if tracer is None or package.partition(".")[0] in _OURS:
        return _import(name, globals, locals, fromlist, level)
    sys.settrace(None)
    try:
        return _import(name, globals, locals, fromlist, level)
    finally:
        sys.settrace(tracer)


if "COVERAGE_PROCESS_CONFIG" in os.environ:
    builtins.__import__ = _untraced_import
