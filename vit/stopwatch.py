"""Time by stage, excluding nested stages.

Code that can be timed takes a `Timer` and enters it with each stage's name: a `Stopwatch`, or `untimed`, which costs
nothing. On a CUDA device a stopwatch synchronizes at both ends of a stage, so stages do not overlap.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch.profiler import record_function


class Timer(Protocol):
    """`with timer("forward"):` marks the block as that stage."""

    def __call__(self, stage: str, /) -> AbstractContextManager[None]: ...


_NOTHING = nullcontext()


def untimed(stage: str, /) -> AbstractContextManager[None]:  # noqa: ARG001
    """Time nothing."""
    return _NOTHING


class Stopwatch:
    """A `Timer` that adds up `seconds` by stage, and names the stages in torch's traces."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._synchronizes = device.type == "cuda"
        self._inner = [0.0]
        """For every open stage, the seconds of its nested stages."""

    @contextmanager
    def __call__(self, stage: str, /) -> Iterator[None]:
        self._inner.append(0.0)
        started = self._now()
        with record_function(stage):
            try:
                yield
            finally:
                elapsed = self._now() - started
                self.seconds[stage] += elapsed - self._inner.pop()
                self._inner[-1] += elapsed

    def _now(self) -> float:
        if self._synchronizes:
            torch.cuda.synchronize()
        return time.perf_counter()
