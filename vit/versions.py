"""This package's version, and those of the packages that a result was computed with."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

VERSION = "0.1.0"


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Version of each installed package; `vit` has one also where it runs from a checkout that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # late: `import vit` stays light

    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = VERSION if name == "vit" else version(name)
    return found
