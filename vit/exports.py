"""Lazy exports of packages (PEP 562): a name is imported when it is first asked for, so that importing stays cheap."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package: what its `__init__.py` imports under `TYPE_CHECKING`.

    So the exports stand in one list, which type checkers read as ordinary imports.
    """
    source = pkgutil.get_data(package, "__init__.py")
    assert source is not None, f"{package} has no source to read its exports from"
    (guarded,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    homes = {
        alias.name: str(node.module)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]  # a submodule's is the package itself
        value = import_module(f"{package}.{name}") if home == package else getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, directory, sorted(homes)
