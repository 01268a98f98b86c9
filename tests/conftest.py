"""Where Triton programs run, what needs a CUDA device, and the order of the tests."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():  # read when triton is first imported, which is later: `vit` imports it on first use
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that fork go first: a compiled model starts autograd's threads, and those do not survive a fork."""
    items.sort(key=lambda item: not item.path.name.startswith(("test_processes", "test_sharding")))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
