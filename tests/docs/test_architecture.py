"""ARCHITECTURE.md names every module, and the page of figures every figure."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

PAGE = ROOT / "ARCHITECTURE.md"
FILES = PAGE.read_text(encoding="utf-8").partition("## What is in which file")[2]
PACKAGES = sorted(f"vit/{path.parent.name}" for path in ROOT.glob("vit/*/__init__.py"))
PARAGRAPHS = dict(re.findall(r"^\*\*`(vit/\w+)/`\*\*(.*?)\n\n", FILES, re.MULTILINE | re.DOTALL))


def missing(text: str, folder: str) -> list[str]:
    """Modules of a folder that no word in backticks names."""
    words = {word for quoted in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", quoted)}
    modules = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__", "__main__"}
    return sorted(modules - words)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_a_paragraph_that_names_its_modules(package: str) -> None:
    assert missing(PARAGRAPHS[package], package) == []


def test_the_modules_beside_the_packages_are_named() -> None:
    assert missing(PAGE.read_text(encoding="utf-8"), "vit") == []


def test_a_module_without_a_name_is_found() -> None:
    assert "zoo" in missing(PARAGRAPHS["vit/models"].replace("`zoo`", ""), "vit/models")


def test_the_page_of_figures_lists_all_of_them_in_order_each_with_its_section() -> None:
    from vit.analysis.figures import FIGURES

    page = (ROOT / "docs" / "looking_inside.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\[`(\w+)`\]\(#([\w-]+)\)", page, re.MULTILINE)
    assert [name for name, _ in listed] == list(FIGURES)
    headings = [re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in re.findall(r"^### (.*)", page, re.M)]
    assert [anchor for _, anchor in listed] == headings
