"""Where the time of a piece of work goes: seconds by stage, what runs inside a stage taken from it.

Knows no model and no data. On a CUDA device the queue is waited for at both ends of a stage, so what would overlap is
laid end to end.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import record_function


class Stopwatch:
    """`seconds` of every stage so far."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._synchronizes = device.type == "cuda"
        self._inner = [0.0]
        """For every open stage, the seconds of those inside it."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What runs in the block belongs to the stage, which a trace shows by its name."""
        self._inner.append(0.0)
        started = self._now()
        with record_function(name):
            try:
                yield
            finally:
                elapsed = self._now() - started
                self.seconds[name] += elapsed - self._inner.pop()
                self._inner[-1] += elapsed

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, as a stage."""

        def run(*args: Any, **options: Any) -> Any:
            with self.stage(name):
                return call(*args, **options)

        return run

    def timed_iterator(self, name: str, items: Iterable[Any]) -> Iterator[Any]:
        """The same items; what it takes to get each is the stage."""
        iterator = iter(items)
        while True:
            with self.stage(name):
                item = next(iterator, self)
            if item is self:
                return
            yield item

    def _now(self) -> float:
        if self._synchronizes:
            torch.cuda.synchronize()
        return time.perf_counter()
