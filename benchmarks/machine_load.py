"""How much of the machine other processes take while something is timed, as Linux counts it."""

from __future__ import annotations

import os
import time
from pathlib import Path

MOST_OTHER_LOAD = 0.05
"""Share of the machine; more makes a time worthless."""


class BusyMachine(ValueError):
    """Other processes took too much of the machine for a time to mean anything."""


class Load:
    """The machine's load from now on, as Linux counts it."""

    def __init__(self) -> None:
        self._busy, self._begun = _busy_seconds(), time.monotonic()

    def refuse(self, own: float = 0.0) -> float:
        """The share of all cores that others took until now; `own`: processor seconds of the measured process.

        BusyMachine if it is more than `MOST_OTHER_LOAD`.
        """
        capacity = (time.monotonic() - self._begun) * (os.cpu_count() or 1)
        share = min(1.0, max(0.0, _busy_seconds() - self._busy - own) / capacity)  # ticks are rounded
        if share > MOST_OTHER_LOAD:
            raise BusyMachine(
                f"other processes took {share:.0%} of this machine, and at most {MOST_OTHER_LOAD:.0%} leave "
                "a time that means something; stop them, then repeat"
            )
        return share


def _busy_seconds() -> float:
    """Processor seconds since the start of the machine in which any core was not idle, the host's included; Linux."""
    ticks = [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _waiting, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
