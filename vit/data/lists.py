"""A list of image files and their classes, which may say of each image whether it is for training or the test.

It is CSV, or Parquet where pyarrow is installed.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from vit.config import nearest
from vit.config.part_names import PART_WORDS, PartName, part_named
from vit.data.file_source import FileSource

PARQUET = ".parquet"
LISTS = (".csv", ".tsv", PARQUET)
_UNPACKED_BY_HAND = {".gz": "gunzip", ".xz": "unxz", ".7z": "7z x", ".rar": "unrar x"}
_TABLES = {".feather": "feather", ".arrow": "feather", ".xlsx": "excel", ".jsonl": "json"}
"""Endings of tables in other formats, and pandas' names of these."""
_FILE_COLUMNS = ("file", "file_name", "filename", "image", "path")
_LABEL_COLUMNS = ("label", "class", "category", "target")


def read_list(path: Path) -> tuple[FileSource, list[PartName] | None]:
    """The images of a list, relative to its folder, and the part of each where it has a column `split`.

    As in folders, validation images are the test set where no others are.

    ValueError for another kind of file, and for a list in which a file, a class or a column is missing.
    """
    named = f"data.root: {str(path)!r} is not valid:"
    columns, rows = _rows(path, named)
    file_column, label_column = (_column(columns, wanted, named) for wanted in (_FILE_COLUMNS, _LABEL_COLUMNS))
    files, labels = ([(row[column] or "").strip() for row in rows] for column in (file_column, label_column))
    for number, (file, label, row) in enumerate(zip(files, labels, rows, strict=True), 2):
        if any(
            cell.strip() for cell in dict[Any, Any](row).get(None, ())
        ):  # an empty one stands after a last separator
            rule = "a name or label that holds the separator must be in quotes"
            raise ValueError(f"{named} row {number} has more cells than the header; {rule}")
        if not file or not label:
            raise ValueError(f"{named} row {number} has no {label_column if file else file_column}")
        if not (path.parent / file).is_file():
            raise ValueError(f"{named} row {number}: there is no file {str(path.parent / file)!r}")
    if not rows:
        raise ValueError(f"{named} it has no rows")
    twice, count = Counter(map(os.path.normpath, files)).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{named} {twice!r} is there {count} times; a list gives an image one class")
    classes = sorted(set(labels), key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
    if len(classes) < 2:
        raise ValueError(f"{named} it has one class, {classes[0]!r}; at least 2 are needed")
    numbers = {name: number for number, name in enumerate(classes)}
    source = FileSource(path.parent, files, torch.tensor([numbers[label] for label in labels]), classes, listed=True)
    split_columns = _matching(columns, ("split",))
    if len(split_columns) > 1:
        raise ValueError(f"{named} it has the columns {', '.join(split_columns)}; keep one")
    return source, _parts(rows, split_columns[0], named) if split_columns else None


def read_files(path: Path, named: str) -> list[str]:
    """The files that a list names, with classes or without. ValueError, beginning with `named`, as in `read_list`."""
    columns, rows = _rows(path, named)
    column = _column(columns, _FILE_COLUMNS, named)
    return [file for row in rows if (file := (row[column] or "").strip())]


def read_table(path: Path, named: str, delimiter: str = ",") -> tuple[list[str], list[dict[str, str]]]:
    """The columns and the rows of a CSV file. ValueError, beginning with `named`, for a file that is none."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, delimiter=delimiter)
            columns, rows = list(reader.fieldnames or ()), list(reader)
    except UnicodeDecodeError as error:
        raise ValueError(f"{named} it is not text in UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{named} it is not CSV: {error}") from error
    _check_names(columns, named)
    return columns, rows


def _check_names(columns: list[str], named: str) -> None:
    twice, count = Counter(columns).most_common(1)[0] if columns else ("", 0)
    if count > 1:
        raise ValueError(f"{named} {count} columns are called {twice!r}")


def _rows(path: Path, named: str) -> tuple[list[str], list[dict[str, str]]]:
    ending = path.suffix.lower()
    if ending in _UNPACKED_BY_HAND:
        rule = f"images are read from folders, .zip and .tar; unpack it first: {_UNPACKED_BY_HAND[ending]} '{path}'"
        raise ValueError(f"{named} {rule}")
    if ending in _TABLES:
        rule = f"a list is CSV here; write one: pandas.read_{_TABLES[ending]}('{path}').to_csv('list.csv', index=False)"
        raise ValueError(f"{named} {rule}")
    if ending not in LISTS:
        raise ValueError(f"{named} give a folder, or a list of files and labels that ends in {' or '.join(LISTS)}")
    if ending == PARQUET:
        return _read_parquet(path, named)
    return read_table(path, named, "\t" if ending == ".tsv" else ",")


def _read_parquet(path: Path, named: str) -> tuple[list[str], list[dict[str, str]]]:
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError as error:
        rule = "pyarrow, which reads it, is not installed; pip install pyarrow, or give a list in CSV"
        raise ValueError(f"{named} {rule}") from error
    try:
        with parquet.ParquetFile(path) as file:
            table = file.read()
    except (ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's or its rights', not the file's
            raise
        raise ValueError(f"{named} it is not Parquet: {' '.join(str(error).split())[:200]}") from error
    _check_names(table.column_names, named)
    names = _matching(table.column_names, _FILE_COLUMNS)
    for field in table.schema:
        if field.name in names and not (types.is_string(field.type) or types.is_large_string(field.type)):
            rule = "a list names files; write the images to files first"
            raise ValueError(f"{named} its column {field.name!r} holds {field.type}, no names; {rule}")
    rows = table.to_pylist()
    return table.column_names, [{name: "" if row[name] is None else str(row[name]) for name in row} for row in rows]


def _matching(columns: list[str], wanted: tuple[str, ...]) -> list[str]:
    """The columns called so, else those called so but for case and blanks around the name."""
    exact = [column for column in columns if column in wanted]
    return exact or [column for column in columns if column.strip().casefold() in wanted]


def _column(columns: list[str], wanted: tuple[str, ...], named: str) -> str:
    found = _matching(columns, wanted)
    if len(found) != 1:
        other = next((mark for mark in (";", "\t", "|") if mark in "".join(columns)), None)
        divided = f" (columns are divided by commas, in .tsv by tabs, not by {other!r})" if other else ""
        problem = f"it has the columns {', '.join(found or columns) or '(none)'}{divided}"
        raise ValueError(f"{named} {problem}; its first line must name one of {', '.join(wanted)}, and its rows follow")
    return found[0]


def _parts(rows: list[dict[str, str]], column: str, named: str) -> list[PartName]:
    parts: list[PartName] = []
    for number, row in enumerate(rows, 2):
        word = (row[column] or "").strip()
        if (part := part_named(word)) is None:
            raise ValueError(f"{named} row {number}: split is {word!r}; {nearest(word, PART_WORDS)}")
        parts.append(part)
    if "test" not in parts:
        parts = ["test" if part == "validation" else part for part in parts]
    needed: tuple[PartName, ...] = ("train", "test")
    for part in needed:
        if part not in parts:
            raise ValueError(f"{named} its column split names no image for the {part} part")
    return parts
