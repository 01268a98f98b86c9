"""What became of every tensor when weights were loaded. A file that fits in part must never look like success."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class LoadReport:
    """Names of the model's tensors (`loaded`, `resized`, `missing`, `replaced`) and of the source's (`ignored`,
    `left_over`)."""

    source: str
    num_source: int = 0
    loaded: list[str] = field(default_factory=list)
    resized: dict[str, str] = field(default_factory=dict)
    """Name → `14×14 → 24×24`."""
    replaced: list[str] = field(default_factory=list)
    """Head tensors that were left at their first values on purpose."""
    ignored: list[str] = field(default_factory=list)
    """Source tensors of a head that the model does not have on purpose."""
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
        grids = "".join(f", {name} {change}" for name, change in self.resized.items())
        head = f", {len(self.replaced)} of a new head" if self.replaced else ""
        ignored = f", {len(self.ignored)} of another head ignored" if self.ignored else ""
        return f"{self.source}: {self.num_source} tensors, {len(self.loaded)} loaded{grids}{head}{ignored}"
