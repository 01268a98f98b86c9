"""The settings of a multi-label classifier's training: images with any number of labels, from a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from vit.config.data import DataConfig
from vit.config.rules import check, check_effect
from vit.config.run import ImageRun


@dataclass(frozen=True, kw_only=True)
class TableDataConfig(DataConfig):
    """The `data:` section: CSV tables below `data.root` that say which image has which labels."""

    sets: ClassVar[tuple[str, ...]] = ("table",)
    folder_set: ClassVar[str] = "table"

    name: str = "table"
    """Tables are the one kind of data of this task."""
    train_table: str = "train.csv"
    """A CSV file with a header, relative to `data.root`; its images are relative to `data.root` too."""
    test_table: str = "test.csv"
    """The table of the test images, as `train_table`."""
    file_column: str = "file"
    """The column of an image's path."""
    labels_column: str = "labels"
    """The column of an image's labels; an empty cell means none."""
    separator: str = ";"
    """Between the labels of an image."""
    label_columns: tuple[str, ...] = ()
    """Instead of `labels_column`: one column a class, with 0 or 1 in every row."""

    def is_set(self, place: str) -> bool:
        """Whether `--data PLACE` names images with labels: a folder that holds the test table."""
        return (Path(place) / self.test_table).is_file()

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.name == "table", "data.name", self.name, "a multi-label run reads tables: 'table'")
        rule = "it balances classes of which an image has one; leave it out"
        check(self.sampling == "shuffled", "data.sampling", self.sampling, rule)
        check(len(self.separator) > 0, "data.separator", self.separator, "it must not be empty")
        twice = sorted({name for name in self.label_columns if self.label_columns.count(name) > 1})
        check(not twice, "data.label_columns", self.label_columns, f"{', '.join(twice)} is there twice")
        one_column = (not self.label_columns, "data.label_columns empty")
        check_effect("data", self, {"labels_column": one_column, "separator": one_column})


@dataclass(frozen=True, kw_only=True)
class MultilabelRun(ImageRun):
    """Training a multi-label image classifier."""

    evaluation_settings: ClassVar = (
        *("data.name", "data.root", "data.test_table", "data.file_column", "data.labels_column", "data.separator"),
        *("data.label_columns", "data.eval_batch_size", "data.workers", "data.on_broken_image", "device"),
        "train.precision",
    )

    task: Literal["multilabel"] = "multilabel"
    data: TableDataConfig = field(default_factory=TableDataConfig)


RUN = MultilabelRun
