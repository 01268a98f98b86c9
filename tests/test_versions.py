"""Versions in records."""

from __future__ import annotations

from importlib import metadata

import pytest

from vit.versions import VERSION, package_versions


def test_a_checkout_that_was_never_installed_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in it ended with an error instead of its results."""

    def nothing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    assert package_versions(("vit", "torch")) == {"vit": VERSION}
