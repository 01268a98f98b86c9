"""The contracts between packages say something of every package."""

from __future__ import annotations

import pkgutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

import vit

SETTINGS = tomllib.loads((Path(vit.__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS: list[dict[str, Any]] = SETTINGS["tool"]["importlinter"]["contracts"]
PACKAGES = {f"vit.{module.name}" for module in pkgutil.iter_modules(vit.__path__)}


def test_every_package_is_on_a_level() -> None:
    levels = next(contract for contract in CONTRACTS if contract["type"] == "layers")
    on_levels = [package for level in levels["layers"] for package in level.split(" | ")]
    assert sorted(on_levels) == sorted(PACKAGES | {"benchmarks", "results"})


@pytest.mark.parametrize(
    ("library", "allowed"), [("matplotlib", {"vit.figures"}), ("accelerate", {"vit.engine", "vit.training"})]
)
def test_a_library_is_forbidden_to_every_other_package(library: str, allowed: set[str]) -> None:
    contract = next(contract for contract in CONTRACTS if contract.get("forbidden_modules") == [library])
    assert set(contract["source_modules"]) == PACKAGES - allowed
