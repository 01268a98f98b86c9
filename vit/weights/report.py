"""Report of loading weights, tensor by tensor, so that a partial load never looks complete."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class LoadReport:
    """Names of tensors: the model's (`loaded`, `actions`, `resized`, `missing`, `replaced`) and the source's
    (`ignored`, `dropped`, `unexpected`)."""

    source: str
    num_source: int = 0
    layout: str | None = None
    """The layout of the source's names; None: our own names."""
    loaded: list[str] = field(default_factory=list)
    actions: dict[str, str] = field(default_factory=dict)
    """Name → how it was made: `copied`, `reshaped`, `reordered`, `fused`, `split`, `adapted to 5 channels`."""
    resized: dict[str, str] = field(default_factory=dict)
    """Name → `14×14 → 24×24`."""
    replaced: list[str] = field(default_factory=list)
    """Head tensors that keep their initial values on purpose."""
    ignored: list[str] = field(default_factory=list)
    """Head tensors of the source that the model has no use for."""
    cast: dict[str, int] = field(default_factory=dict)
    """`float16 → float32` → number of tensors."""
    selection: str = ""
    """Which of several sets of weights in the source was used, and the prefix removed from their names, if any."""
    resize: str = ""
    """The method by which positions were resized (`ViTConfig.position_resize`), if they were."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Source tensor → the reason why it was dropped on purpose."""
    unexpected: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)
    """BatchNorm's counts of batches, which older files lack and nothing computes with; they stay 0."""

    def check(self, heads: tuple[str, ...] = ()) -> None:
        """Raise ValueError naming tensors that are missing or unexpected; `heads`: the first parts of heads' names."""
        rules = {
            heads: "it has no head; set model.new_head true to train a new one",
            ("embedding.stem.",): "it embeds patches without these layers; set model.stem 'patch'",
        }
        for beginnings, rule in rules.items():
            if self.missing and not self.unexpected and all(name.startswith(beginnings) for name in self.missing):
                raise ValueError(f"model.pretrained: {self.source} does not have {', '.join(self.missing)}: {rule}")
        for what, names in (("does not have", self.missing), ("has, and the model does not,", self.unexpected)):
            if names:
                shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
                raise ValueError(f"model.pretrained: {self.source} {what} {shown}; is model.name the right one?")

    def summary(self) -> str:
        """The report in one line."""
        counts = Counter(action for action in self.actions.values() if action != "copied")
        changed = "".join(f", {count} {action}" for action, count in sorted(counts.items()))
        grids = "".join(f", {name} {change}" for name, change in self.resized.items())
        grids += f" ({self.resize})" if self.resized else ""
        head = f", {len(self.replaced)} of a new head" if self.replaced else ""
        ignored = f", {len(self.ignored)} of another head ignored" if self.ignored else ""
        reasons = Counter(self.dropped.values())
        dropped = "".join(f", {count} left out ({why})" for why, count in reasons.items())
        counts_of_batches = f", without {len(self.uncounted)} counts of BatchNorm's batches" if self.uncounted else ""
        layout = f" in the layout {self.layout}" if self.layout else ""
        selection = f" ({self.selection})" if self.selection else ""
        casts = "".join(f", cast {change}: {count}" for change, count in self.cast.items())
        return (
            f"{self.source}: {self.num_source} tensors{selection}{layout}, "
            f"{len(self.loaded)} loaded{changed}{casts}{grids}{head}{ignored}{dropped}{counts_of_batches}"
        )
