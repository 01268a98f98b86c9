"""The order of the tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that fork go first: a compiled model starts autograd's threads, and those do not survive a fork."""
    items.sort(key=lambda item: not item.path.name.startswith(("test_processes", "test_sharding")))
