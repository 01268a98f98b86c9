"""A table of images and their labels as an image source, and its division into training and validation.

The table is a CSV file with a header: one column names the image, and either one column holds its labels, divided by a
separator, or one column a class holds 0 or 1.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from vit.config import check, nearest
from vit.config.validation import make_settings
from vit.data.decoding import MissingImages
from vit.data.file_source import FileSource
from vit.data.lists import read_table
from vit.data.splits import Split, keys_of, stratified
from vit.tasks.multilabel.config import TableDataConfig

logger = logging.getLogger(__name__)
MARKS = (" ", ",", ";", "|", "/")
"""Separators that people put between labels."""


def open_training(config: TableDataConfig) -> tuple[Split, Split]:
    """(train, validation), cut at random by `data.val_fraction` and `data.fraction`.

    ValueError for a table that is not as it should be, where a class has no image left to train on, and where no
    validation image has a label.
    """
    source = _open(config, "train_table", None)
    rule = "at least 2 images, one to train on and one for validation"
    check(len(source) >= 2, "data.train_table", config.train_table, rule)
    one_class = torch.zeros(len(source), dtype=torch.int64)
    keys = keys_of(source)
    assert keys is not None  # a table names files
    is_val = stratified(one_class, config.val_fraction, seed=config.split_seed, stream="validation", keys=keys)
    left = torch.nonzero(~is_val).flatten()
    is_chosen = stratified(one_class[left], config.fraction, seed=config.subset_seed, stream="subset", keys=keys[left])
    chosen = left[is_chosen]
    for name, count in zip(source.class_names, source.labels[chosen].sum(dim=0).tolist(), strict=True):
        check(count > 0, "data.train_table", config.train_table, f"no image that is trained on has the label {name!r}")
    rule = "no validation image has a label; hold out more of them, or take another data.split_seed"
    check(bool(source.labels[is_val].any()), "data.val_fraction", config.val_fraction, rule)
    epoch_length = len(left) if config.epoch_length == "whole_set" else None
    return Split(source, chosen, epoch_length), Split(source, torch.nonzero(is_val).flatten())


def open_trained(state: Mapping[str, Any]) -> tuple[Split, Split]:
    """The (train, validation) images of a run, by its checkpoint's state. ValueError as `open_training`."""
    return open_training(make_settings(TableDataConfig, state["config"]["data"], "data"))


def open_test(config: TableDataConfig, class_names: list[str] | None = None) -> Split:
    """All images of the test table. ValueError for a label that is none of `class_names`, where these are known."""
    source = _open(config, "test_table", class_names)
    return Split(source, torch.arange(len(source)))


def check_test(config: TableDataConfig, class_names: list[str]) -> None:
    """ValueError for a test table that `open_test` would refuse, before anything is trained; no image is read."""
    _open(config, "test_table", class_names)


def _open(config: TableDataConfig, field: str, class_names: list[str] | None) -> FileSource:
    path = Path(config.root) / getattr(config, field)
    if not path.is_file():
        raise MissingImages(f"data.{field}: there is no file {str(path.absolute())!r}; write it, or set data.root")
    named = f"data.{field}: {str(path)!r} is not valid:"
    found = {
        name: _labels(row, config, f"{named} row {line} ({name}):") for line, name, row in _rows(path, config, named)
    }
    if not found:
        raise ValueError(f"{named} it has no rows")
    seen = {label for labels in found.values() for label in labels}
    several = next((label for label in sorted(seen) if any(mark in label for mark in MARKS)), None)
    if several and not config.label_columns and max(map(len, found.values())) < 2:
        question = f"is data.separator {config.separator!r} right?"
        logger.warning("%s: no image has two labels, and %r looks like several; %s", path, several, question)
    known = class_names or list(config.label_columns) or sorted(seen)
    if not known:
        raise ValueError(f"{named} no image has a label")
    for label in sorted(seen - set(known)):
        raise ValueError(f"{named} the label {label!r} is none of the training table's; {nearest(label, known)}")
    place = {name: number for number, name in enumerate(known)}
    targets = torch.zeros(len(found), len(known), dtype=torch.uint8)
    for index, labels in enumerate(found.values()):
        targets[index, [place[label] for label in labels]] = 1
    return FileSource(Path(config.root), list(found), targets, known, listed=True)


def _rows(path: Path, config: TableDataConfig, named: str) -> Iterator[tuple[int, str, dict[str, str]]]:
    """The number, the file and the cells of every row. ValueError for columns, files and rows that are missing."""
    root = Path(config.root)
    first_row: dict[str, int] = {}
    columns, rows = read_table(path, named)
    _check_columns(path, columns, config)
    for number, row in enumerate(rows, 2):
        name = (row[config.file_column] or "").strip()
        if not name:
            raise ValueError(f"{named} row {number} names no file")
        if None in row or None in row.values():
            raise ValueError(f"{named} row {number} ({name}) has not as many cells as the header")
        place = os.path.normpath(name)
        if place in first_row:
            raise ValueError(f"{named} {name!r} is there twice, in rows {first_row[place]} and {number}")
        if not (root / name).is_file():
            raise ValueError(f"{named} row {number}: there is no file {str(root / name)!r}")
        first_row[place] = number
        yield number, name, row


def _check_columns(path: Path, columns: list[str], config: TableDataConfig) -> None:
    wanted = [("file_column", config.file_column)]
    if config.label_columns:
        wanted += [("label_columns", name) for name in config.label_columns]
    else:
        wanted.append(("labels_column", config.labels_column))
    for setting, name in wanted:
        if name not in columns:
            hint = nearest(name, columns) if columns else "it is empty"
            raise ValueError(f"data.{setting}: {str(path)!r} has no column {name!r}; {hint}")


def _labels(row: dict[str, str], config: TableDataConfig, named: str) -> list[str]:
    """The labels of one row. ValueError beginning with `named`."""
    if config.label_columns:
        for name in config.label_columns:
            if row[name].strip() not in ("0", "1"):
                raise ValueError(f"{named} {name} is {row[name]!r}; it must be 0 or 1")
        return [name for name in config.label_columns if row[name].strip() == "1"]
    labels = [label.strip() for label in row[config.labels_column].split(config.separator)]
    labels = [label for label in labels if label]
    if len(set(labels)) < len(labels):
        raise ValueError(f"{named} a label is there twice: {row[config.labels_column]!r}")
    return labels
