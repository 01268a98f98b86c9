"""A figure of a model with the numbers behind it and the caption under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vit.analysis.targets import AnalysisTarget
from vit.figures.style import Figure, save_figure
from vit.runs import write_csv


@dataclass(frozen=True, kw_only=True, eq=False)
class AnalysisFigure:
    figure: Figure
    numbers: dict[str, Any]
    """With their conventions."""
    caption: str
    table: Sequence[dict[str, Any]] = field(default_factory=tuple)
    """The numbers as rows, where a table suits them better."""

    def save(self, path: Path) -> None:
        """Write PNG, SVG, JSON and, where there is a table, CSV, under one name."""
        for suffix in (".png", ".svg"):
            save_figure(self.figure, path.with_suffix(suffix), self.numbers)
        if self.table:
            write_csv(path.with_suffix(".csv"), self.table)


Draw = Callable[[AnalysisTarget], AnalysisFigure]
"""Raises Unsupported where the model or the images lack something that it needs."""
