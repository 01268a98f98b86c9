"""The finished table, in the format that the file's name says: CSV, JSON lines or Parquet.

To add a format, write a function of (path, rows, top_k) and name it in `_WRITERS`, and one that reads it in `_READERS`.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from vit.config import check
from vit.prediction.rows import Row
from vit.runs import write_csv_rows

_ROWS_IN_GROUP = 10_000
"""Rows in a Parquet file's row group; a group is in memory at once."""
_LONGEST_LINE = 16 * 2**20
"""Bytes; a row with the probabilities of 20,000 classes takes a tenth of it."""


def check_table(path: Path) -> None:
    """ValueError for a name of no known format, a folder, and a format whose package is missing."""
    check(path.suffix.lower() in _WRITERS, "--output", str(path), f"its name must end in {', '.join(_WRITERS)}")
    check(not path.is_dir(), "--output", str(path), "it is a folder")
    missing = path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None
    check(not missing, "--output", str(path), "pyarrow, which writes it, is not installed; pip install pyarrow")


def check_replaceable(path: Path) -> None:
    """ValueError for a file that is there already, and is neither empty nor a table of predictions."""
    if path.exists():
        is_ours = path.is_file() and (path.stat().st_size == 0 or _is_table(path))
        rule = "it exists already and is not a table of predictions; name another file, or remove it"
        check(is_ours, "--output", str(path), rule)


def _is_table(path: Path) -> bool:
    """By its header, its first row or its schema: of a file of another kind, which may be large, no more is read."""
    if path.suffix.lower() == ".parquet":
        return _has_schema(path)
    with path.open("rb") as file:
        first = file.readline(_LONGEST_LINE).decode(errors="surrogateescape")
    if path.suffix.lower() == ".csv":
        top_k = first.count(",class_")
        return top_k > 0 and first.rstrip("\r\n") == ",".join(columns(top_k))
    try:
        row = json.loads(first) if first.startswith('{"file": ') else None
    except (RecursionError, ValueError):
        return False
    return isinstance(row, dict) and row.keys() == Row("").as_dict().keys()


def write_table(path: Path, suffix: str, rows: Iterable[Row], top_k: int) -> None:
    """Write the rows one after the other. `suffix` names the format, as `path` may be a file of another name."""
    _WRITERS[suffix.lower()](path, rows, top_k)


def read_table(path: Path) -> Iterator[Row]:
    """The rows of a table that `write_table` wrote, in order."""
    return _READERS[path.suffix.lower()](path)


def columns(top_k: int) -> list[str]:
    """The header of a CSV file."""
    return ["file", *(f"{name}_{rank}" for rank in range(1, top_k + 1) for name in ("class", "probability")), "error"]


def _write_csv(path: Path, rows: Iterable[Row], top_k: int) -> None:
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        write_csv_rows(file, chain([columns(top_k)], (_cells(row, top_k) for row in rows)))


def _cells(row: Row, top_k: int) -> list[str]:
    classes = chain.from_iterable((name, f"{probability:.6f}") for name, probability in row.classes)
    return [row.file, *classes, *repeat("", 2 * (top_k - len(row.classes))), row.error]


def _read_csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file)
        next(reader)
        for name, *cells, error in reader:
            pairs = zip(cells[::2], cells[1::2], strict=True)
            yield Row(name, tuple((label, float(probability)) for label, probability in pairs if label), error)


def _write_lines(path: Path, rows: Iterable[Row], top_k: int) -> None:  # noqa: ARG001
    with path.open("w", encoding="utf-8") as file:
        file.writelines(row.line() for row in rows)


def _read_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        yield from (Row.from_dict(json.loads(line)) for line in file)


def _write_parquet(path: Path, rows: Iterable[Row], top_k: int) -> None:  # noqa: ARG001
    import pyarrow
    from pyarrow import parquet

    schema = _schema()
    with parquet.ParquetWriter(path, schema) as writer:
        remaining = map(_as_text, rows)
        while group := list(islice(remaining, _ROWS_IN_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))


def _schema() -> Any:
    import pyarrow

    pair = pyarrow.struct([("class", pyarrow.string()), ("probability", pyarrow.float32())])
    return pyarrow.schema([("file", pyarrow.string()), ("classes", pyarrow.list_(pair)), ("error", pyarrow.string())])


def _has_schema(path: Path) -> bool:
    import pyarrow
    from pyarrow import parquet

    try:
        return bool(parquet.read_schema(path).equals(_schema()))
    except (pyarrow.ArrowException, OSError, ValueError):  # whatever is no Parquet
        return False


def _as_text(row: Row) -> dict[str, Any]:
    """Parquet strings are UTF-8; other bytes in a file name become question marks."""
    return row.as_dict() | {"file": row.file.encode("utf-8", "replace").decode()}


def _read_parquet(path: Path) -> Iterator[Row]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for group in file.iter_batches():
            yield from map(Row.from_dict, group.to_pylist())


_WRITERS: dict[str, Callable[[Path, Iterable[Row], int], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_lines,
    ".parquet": _write_parquet,
}
_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_lines,
    ".parquet": _read_parquet,
}
