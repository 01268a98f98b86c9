"""Versions and the commit in records."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from vit import versions
from vit.versions import VERSION, package_versions


def test_a_checkout_that_was_never_installed_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in it ended with an error instead of its results."""

    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    assert package_versions(("vit", "torch")) == {"vit": VERSION}


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    return subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a package that stands for this one's, in a folder that no checkout is above."""
    file = tmp_path / "checkout" / "vit" / "versions.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr(versions, "__file__", str(file))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setattr(versions, "checkout_commit", versions.checkout_commit.__wrapped__)  # which is not cached
    return file


def test_the_commit_of_the_checkout(package: Path) -> None:
    assert versions.checkout_commit() is None
    git(package.parent, "init", "-q")
    git(package.parent, "commit", "-q", "--allow-empty", "-m", "empty")
    assert versions.checkout_commit() is None  # of somebody else's repository
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-q", "-m", "the package")
    commit = git(package.parent, "rev-parse", "HEAD").strip()
    assert versions.checkout_commit() == commit
    package.write_text("VERSION = 2")
    assert versions.checkout_commit() == commit + versions.CHANGED
    git(package.parent, "checkout", "-q", ".")
    (package.parents[1] / "notes.txt").write_text("beside the package")
    assert versions.checkout_commit() == commit


def test_without_git(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(package.parent))
    assert versions.checkout_commit() is None
