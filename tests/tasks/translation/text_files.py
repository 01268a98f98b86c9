"""Small sets in Multi30k's layout, made up."""

from __future__ import annotations

import gzip
from pathlib import Path

PAIRS = {
    "train": [("Ein Mann läuft.", "A man runs."), (" Zwei\tFrauen ", "Two  women"), ("", "Nothing"), ("Öl", "Oil")],
    "val": [("Ein Hund.", "A dog.")],
    "test_2016_flickr": [("Eine Katze.", "A cat."), ("Ein Vogel.", "A bird.")],
    "extra": [("Ein Fisch.", "A fish.")],
}


def write_lines(path: Path, lines: list[str], *, end: str = "\n") -> None:
    path.write_bytes(gzip.compress("".join(line + end for line in lines).encode()))


def make_set(root: Path, pairs: dict[str, list[tuple[str, str]]] = PAIRS) -> Path:
    """Files of every part in both languages under `root`."""
    root.mkdir(parents=True, exist_ok=True)
    for part, lines in pairs.items():
        for language, column in zip(("de", "en"), zip(*lines, strict=True), strict=True):
            write_lines(root / f"{part}.{language}.gz", list(column))
    return root
