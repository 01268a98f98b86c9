"""This package's version, and those of the packages that a result was computed with."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

VERSION = "0.1.0"
CHANGED = " with changes"
"""After a commit's name, where the package's files are not as the commit has them."""


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Version of each installed package; `vit` has one also where it runs from a checkout that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # late: `import vit` stays light

    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = VERSION if name == "vit" else version(name)
    return found


def computing_versions() -> dict[str, str]:
    """Python's version, and those of the packages that compute."""
    return {"python": platform.python_version(), **package_versions(("vit", "torch", "torchvision", "timm"))}


@cache
def checkout_commit() -> str | None:
    """The git commit of the checkout that this package was imported from; None where it is installed elsewhere.

    As it was at the first call: a run that calls it at its start names the commit that it was started from.
    """
    import subprocess  # late: `import vit` stays light

    package = Path(__file__).parent
    with suppress(OSError, subprocess.SubprocessError):  # no git; no checkout, or a package that git ignores
        _git(package, "ls-files", "--error-unmatch", Path(__file__).name)
        commit = _git(package, "rev-parse", "HEAD")
        return commit + (CHANGED if _git(package, "status", "--porcelain", ".") else "")
    return None


def _git(folder: Path, *words: str) -> str:
    """Ask git, which takes no locks: somebody may be working in the checkout."""
    from subprocess import run

    command = ["git", "--no-optional-locks", *words]
    return run(command, cwd=folder, capture_output=True, check=True, timeout=10).stdout.decode(errors="replace").strip()
