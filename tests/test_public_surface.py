"""What the package offers: every exported name exists, and type checkers see the same names."""

from __future__ import annotations

import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import mypy.api
import pytest

import vit
from docs.hooks import PACKAGES

ROOT = Path(vit.__file__).parents[1]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_exists(package: str) -> None:
    module = import_module(package)
    assert module.__all__ == sorted(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'absent'"):
        module.absent  # noqa: B018


def test_type_checkers_see_the_exported_names(tmp_path: Path) -> None:
    """mypy finds every name, and of a type; a name that is not exported is the one error."""
    lines = [f"from {package} import {name}" for package in PACKAGES for name in import_module(package).__all__]
    program = tmp_path / "program.py"
    program.write_text("\n".join((*lines, "from vit.analysis import absent")) + "\n")
    said, errors, _ = mypy.api.run(["--config-file", str(ROOT / "pyproject.toml"), str(program)])
    assert errors == ""
    found = [line for line in said.splitlines() if "error:" in line]
    assert len(found) == 1, said
    assert 'Module "vit.analysis" has no attribute "absent"' in found[0]


def test_the_api_page_names_every_package() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [package for package in PACKAGES if f"| `{package}` |" not in page] == []


def test_the_version_is_that_of_the_installed_package() -> None:
    assert vit.__version__ == version("vit")


def test_types_are_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["vit"]
    assert (ROOT / "vit" / "py.typed").read_bytes() == b""
