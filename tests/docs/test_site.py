"""The site is built without a warning, needs no network, and holds every public name and every setting."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from docs.hooks import PACKAGES
from tests.docs.blocks import PAGES, ROOT
from vit.cli import COMMANDS
from vit.config.validation import setting_types
from vit.tasks import TASKS

pytestmark = pytest.mark.slow
LOADED = re.compile(r"<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)=\"?(https?:)?//")
"""An element that fetches something from elsewhere when the page is opened."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def pages(site: Path) -> Iterator[tuple[Path, str]]:
    for path in site.rglob("*.html"):
        yield path, path.read_text(encoding="utf-8")


def test_every_document_has_a_page_in_the_navigation(site: Path) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    for document in PAGES:
        name = "index.md" if document.name == "README.md" else document.name
        assert f"- {name}\n" in navigation
        assert (site / name).with_suffix(".html").is_file()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert [path.name for path, html in pages(site) if LOADED.search(html)] == []
    assert [path.name for path in site.rglob("*.css") if re.search(r"url\([\"']?(https?:)?//", path.read_text())] == []


def test_a_script_from_elsewhere_is_noticed() -> None:
    assert LOADED.search('<script src="https://example.org/a.js">')
    assert not LOADED.search('<a href="https://example.org">')


def test_links_lead_to_pages_and_anchors(site: Path) -> None:
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', html)) for path, html in pages(site)}
    dead = []
    for path, html in pages(site):
        for link in re.findall(r'<a [^>]*?href="([^"]+)"', html):
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            if ":" in link or path.name == "404.html":
                continue
            if not target.is_file() or (anchor and target in anchors and anchor not in anchors[target]):
                dead.append((path.name, link))
    assert dead == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_documented(package: str, site: Path) -> None:
    html = (site / "api" / f"{package}.html").read_text(encoding="utf-8")
    missing = [name for name in import_module(package).__all__ if f'id="{package}.{name}"' not in html]
    assert missing == []


def test_every_setting_is_documented(site: Path) -> None:
    html = (site / "configuration.html").read_text(encoding="utf-8")
    settings = {name for task in TASKS.values() for name in setting_types(task.run_config)}
    assert [name for name in sorted(settings) if f"<code>{name}</code>" not in html] == []


def test_every_command_has_its_help(site: Path) -> None:
    html = (site / "commands.html").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"usage: vit {name}" not in html] == []
