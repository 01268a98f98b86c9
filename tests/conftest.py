"""Where Triton programs run, signals, what needs a CUDA device or a quiet machine, and the order of the tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when its client is imported: no test waits for a network
SHARED = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this is one of several processes that divide the tests (`-n`)."""
if SHARED:  # read when torch is imported, and inherited by what tests start: threads of all would fight for the cores
    threads = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, threads)))

import torch  # noqa: E402

if not torch.cuda.is_available():  # read when triton is first imported, which is later: `vit` imports it on first use
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def signals_restored() -> Iterator[None]:
    """A command that was stopped keeps its handlers until Python ends: the next test's Ctrl-C would end the process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


FIRST = ("test_processes", "test_sharding", "test_kill", "test_timm_family")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that fork go first: a compiled model starts autograd's threads, and those do not survive a fork. Then the
    longest files, each in a process of its own, so that none is left to one process at the end.
    """
    items.sort(key=lambda item: [not item.path.name.startswith(name) for name in FIRST])
    for item in items:
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("timed") and SHARED:
            item.add_marker(pytest.mark.skip(reason="asserts something about seconds: run it with -n 0"))
