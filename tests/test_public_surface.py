"""What the package offers: every exported name exists, and type checkers see the same names."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import mypy.api
import pytest

import vit
from tests.api_page import PACKAGES, page

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


def test_the_page_lists_what_the_packages_export() -> None:
    """Names and signatures, in both directions; `python -m tests.api_page docs/api.md` writes the page anew."""
    written = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert re.findall(r"^## `(.*)`$", written, re.MULTILINE) == list(PACKAGES)
    rows = re.compile(r"^\| (`.*?`) \| (.+) \|$", re.MULTILINE)
    listed = [name for name, line in rows.findall(written) if line.strip()]
    expected = [name for name, _ in rows.findall(page())]
    assert listed == expected
    assert [re.split(r"\W", name)[1] for name in listed] == [
        name for package in PACKAGES for name in import_module(package).__all__
    ]


def test_the_version_is_that_of_the_installed_package() -> None:
    assert vit.__version__ == version("vit")


def test_types_are_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "py.typed" in settings["tool"]["setuptools"]["package-data"]["vit"]
    assert (ROOT / "vit" / "py.typed").read_bytes() == b""
