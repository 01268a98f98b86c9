"""Words for people: counts with their noun, numbers with their unit, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def counted(count: float, noun: str, plural: str | None = None) -> str:
    """`1 step`, `2 steps`, `1,000 steps`; `plural` where it is not the noun and an s."""
    return f"{count:,.0f} {noun if count == 1 else plural or f'{noun}s'}"


def in_giga(number: float) -> str:
    """`0.1817 G`; below a million `37.9 k`, of which four decimals of a billion would show next to nothing."""
    return f"{number / 1e9:.4f} G" if number >= 999_950 else f"{number / 1e3:.1f} k"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str = "---") -> str:
    """A Markdown table; `align`: the rule below the header, `---:` for numbers. A `|` within a cell does not end it."""
    return "\n".join(map(_line, (header, [align] * len(header), *rows)))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
