"""Sentence pairs of the translation sets, part by part, with lines as they stand in the files.

They come from Multi30k's files (Elliott et al. 2016, task 1), or are generated for the copying task. `open_test` is
the only way to the test parts.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from vit.config import check, check_no_pipe
from vit.randomness import SampleRandom
from vit.tasks.translation.config import TextDataConfig

MULTI30K_PAGE = "https://github.com/multi30k/dataset (data/task1/raw)"
LONGEST_LINE = 10_000
"""Characters of a line. It is one sentence, with whose length memory and time grow."""
_MOST_BYTES = 2**30
"""Largest size of a file, unpacked: a hundred million words, many times what vocabulary and batches are made for."""
_HELD_OUT = 10


@dataclass(frozen=True)
class TextSplit:
    """n sentence pairs, one line a side, of one part after the other."""

    sources: list[str]
    targets: list[str]
    part_sizes: dict[str, int]

    def __len__(self) -> int:
        return len(self.sources)

    def name(self, index: int) -> str:
        """The pair's part and line, counted from 1."""
        for part, size in self.part_sizes.items():
            if index < size:
                return f"{part}:{index + 1}"
            index -= size
        raise AssertionError("the parts hold every index")


def open_training(config: TextDataConfig) -> tuple[TextSplit, TextSplit]:
    """(train, validation). ValueError where files are missing or not as they should be."""
    return open_parts(config, ["train"]), open_parts(config, [config.val_part])


def check_test(config: TextDataConfig) -> None:
    """ValueError where a file of the test parts is missing; no line of it is read."""
    if config.name == "multi30k":
        for part in config.test_parts:
            _paths(config, part)


def open_test(config: TextDataConfig) -> TextSplit:
    """The test parts. ValueError where files are missing or not as they should be."""
    return open_parts(config, config.test_parts if config.name == "multi30k" else ["test"])


def open_parts(config: TextDataConfig, parts: Sequence[str]) -> TextSplit:
    """Several parts as one split. ValueError as in `open_training`."""
    read = _read_pairs if config.name == "multi30k" else _copying_pairs
    pairs = {part: read(config, part) for part in parts}
    return TextSplit(
        sources=[line for sources, _ in pairs.values() for line in sources],
        targets=[line for _, targets in pairs.values() for line in targets],
        part_sizes={part: len(sources) for part, (sources, _) in pairs.items()},
    )


def fingerprint(split: TextSplit) -> str:
    """12 hexadecimal digits that change with any line or the order of them."""
    digest = hashlib.sha256()
    for pair in zip(split.sources, split.targets, strict=True):
        digest.update("".join(f"{line}\n" for line in pair).encode())
    return digest.hexdigest()[:12]


def _paths(config: TextDataConfig, part: str) -> tuple[Path, Path]:
    """The files of a part, source and target language. ValueError naming the one that is not there."""
    root = Path(config.root)
    source, target = (root / f"{part}.{name}.gz" for name in (config.source_language, config.target_language))
    for path in (source, target):
        check_no_pipe("data.root", path)
        if not path.is_file():
            raise ValueError(f"data.root: no {path.name} in {str(root)!r}; Multi30k can be had from {MULTI30K_PAGE}")
    return source, target


def _read_pairs(config: TextDataConfig, part: str) -> tuple[list[str], list[str]]:
    paths = _paths(config, part)
    sources, targets = (_read_lines(path) for path in paths)
    if len(sources) != len(targets):
        raise ValueError(
            f"data.root: {paths[0]} has {len(sources)} lines and {paths[1]} has {len(targets)}; "
            "line by line they must be translations of each other"
        )
    if not sources:
        raise ValueError(f"data.root: {paths[0]} holds no line")
    return sources, targets


def _read_lines(path: Path) -> list[str]:
    """The lines, spaces at their ends included. Only LF or CR LF ends one. ValueError for one that is too long."""
    try:
        with gzip.open(path) as file:
            content = file.read(_MOST_BYTES + 1)
        check(len(content) <= _MOST_BYTES, "data.root", str(path), f"it unpacks to more than {_MOST_BYTES:,} bytes")
        text = content.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"data.root: {path} cannot be read as gzipped UTF-8 ({error})") from error
    lines = text.split("\n")
    lines = [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"data.root: line {number:,} of {path} has {len(line):,} characters; a line is one sentence, of at "
                f"most {LONGEST_LINE:,}: divide it"
            )
    return lines


def _copying_pairs(config: TextDataConfig, part: str) -> tuple[list[str], list[str]]:
    """Sentences of random numbers as words. Every sentence is a function of `data.copying_seed`, part and index."""
    num = config.copying_sentences if part == "train" else config.copying_sentences // _HELD_OUT
    shortest, longest = config.copying_lengths
    random = SampleRandom.at(config.copying_seed, 0, torch.arange(num)).fork(f"copying {part}")
    lengths = (shortest + random.fork("length").integers(longest - shortest + 1)).tolist()
    symbols = random.fork("symbols").integers(config.copying_symbols, longest).tolist()
    lines = [" ".join(map(str, row[:length])) for row, length in zip(symbols, lengths, strict=True)]
    return lines, list(lines)
