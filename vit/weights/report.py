"""What became of every tensor when weights were loaded. A file that fits in part must never look like success."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class LoadReport:
    """Names of the model's tensors (`loaded`, `actions`, `resized`, `missing`, `replaced`) and of the source's
    (`ignored`, `dropped`, `left_over`)."""

    source: str
    num_source: int = 0
    layout: str | None = None
    """Whose names the source has; None: ours."""
    loaded: list[str] = field(default_factory=list)
    actions: dict[str, str] = field(default_factory=dict)
    """Name → `copied`, `reshaped`, `fused` or `split`."""
    resized: dict[str, str] = field(default_factory=dict)
    """Name → `14×14 → 24×24`."""
    replaced: list[str] = field(default_factory=list)
    """Head tensors that were left at their first values on purpose."""
    ignored: list[str] = field(default_factory=list)
    """Source tensors of a head that the model does not have on purpose."""
    cast: dict[str, int] = field(default_factory=dict)
    """`float16 → float32` → how many of the model's tensors."""
    taken: str = ""
    """Which of the source's several sets of weights was taken, and which were passed over; empty: it has one."""
    note: str = ""
    """What to know about the resized ones."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Source tensor → why it is left out on purpose."""
    left_over: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def check(self) -> None:
        """ValueError naming what is left over or missing."""
        for what, names in (
            ("does not have", self.missing),
            ("has, and the model does not,", self.left_over),
        ):
            if names:
                shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                raise ValueError(f"model.pretrained: {self.source} {what} {shown}; is model.name the right one?")

    def summary(self) -> str:
        """One line."""
        counts = Counter(action for action in self.actions.values() if action != "copied")
        changed = "".join(f", {count} {action}" for action, count in sorted(counts.items()))
        grids = "".join(f", {name} {change}" for name, change in self.resized.items())
        grids += f" ({self.note})" if self.note and self.resized else ""
        head = f", {len(self.replaced)} of a new head" if self.replaced else ""
        ignored = f", {len(self.ignored)} of another head ignored" if self.ignored else ""
        reasons = Counter(self.dropped.values())
        dropped = "".join(f", {count} left out ({why})" for why, count in reasons.items())
        layout = f" in the layout {self.layout}" if self.layout else ""
        taken = f" ({self.taken})" if self.taken else ""
        casts = "".join(f", cast {change}: {count}" for change, count in self.cast.items())
        return (
            f"{self.source}: {self.num_source} tensors{taken}{layout}, "
            f"{len(self.loaded)} loaded{changed}{casts}{grids}{head}{ignored}{dropped}"
        )
