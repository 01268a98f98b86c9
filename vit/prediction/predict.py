"""Predict the classes of a great many images into a file: streamed, and continued where it was stopped.

Rows are added to an unfinished file beside the output, a line of JSON each, batch by batch. When all images are done
the table is written from it in one pass, and gets its name in one step.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from vit.config import check, check_arguments
from vit.data.decoding import FailedRead
from vit.data.file_source import FileSource
from vit.data.preprocessing import normalize
from vit.data.streaming import MIN_IMAGES_FOR_WORKERS, Decoded, EvaluationDecoder, ImageStream
from vit.engine import DTYPES, Accelerator, check_one_process, make_accelerator, precision_of
from vit.hub import OpenedModel
from vit.models.inference import for_inference
from vit.models.model import Model
from vit.prediction.rows import Classes, Row, check_finite, likeliest, most_classes
from vit.prediction.tables import check_replaceable, check_table, write_table
from vit.progress import duration, progress_bar
from vit.runs import replace_atomically
from vit.wording import counted

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Predicted:
    """A table that was written."""

    path: Path
    num_images: int
    num_broken: int
    """Images that could not be read: they have a row with the reason."""
    num_before: int
    """Rows of an earlier call, which was stopped."""
    seconds: float
    """Time for this call's images, reading included."""

    def text(self) -> str:
        here = self.num_images - self.num_before
        rate = f"{here / self.seconds:,.0f} images/s" if here else "nothing was left to do"
        broken = f"; {self.num_broken:,} could not be read (column error)" if self.num_broken else ""
        before = f", {self.num_before:,} of them by an earlier call" if self.num_before else ""
        return f"{self.path}: {counted(self.num_images, 'image')}{before}, {duration(self.seconds)}, {rate}{broken}"


@check_arguments
def predict_to_file(
    opened: OpenedModel,
    images: Sequence[str | Path],
    output: str | Path,
    *,
    top_k: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    batch_size: int = 64,
    workers: int = 2,
) -> Predicted:
    """Write the `top_k` most likely classes of every image, in their order, to a .csv, .jsonl or .parquet file.

    `top_k` None: five; of a multi-label model, all that reach their threshold.

    Images go through the model's own preprocessing, decoded in `workers` processes where there are many. One that
    cannot be read gets a row with the reason. A call that was stopped continues with the same model and options, up to
    the first image that is another file now; an earlier table is replaced when all is done. ValueError for a model
    without a head, for another suffix, and where `output` is a file of something else.
    """
    output = Path(output)
    check_table(output)
    check_replaceable(output)
    check(bool(images), "images", [], "name at least one")
    check(top_k is None or top_k > 0, "top_k", top_k, "it must be above 0")
    check(batch_size > 0, "batch_size", batch_size, "it must be above 0")
    has_head = opened.num_classes > 0
    check(has_head, "model", opened.source, "it has no head; `vit eval --transfer` evaluates its features")
    accelerator = make_accelerator(device, precision)
    check_one_process(accelerator, "--output", "a table is written")
    top_k, names = most_classes(opened, top_k), [str(image) for image in images]
    output.parent.mkdir(parents=True, exist_ok=True)
    with _written_alone(output) as path:
        key = _key(opened, top_k, precision_of(accelerator))
        unfinished = _Unfinished(path, key, [(name, _stamp(name)) for name in names])
        started, before = time.monotonic(), unfinished.num_rows
        if before < len(names):
            decoded = _decoded(opened, names[before:], batch_size, workers)
            classify = _classifier(opened, accelerator, top_k)
            with unfinished.appending() as file, progress_bar("predict", len(names), done=before, unit="img") as bar:
                for chunk, batch in decoded:
                    file.writelines(unfinished.line(row) for row in _rows(chunk, batch, classify))
                    file.flush()
                    bar.update(len(chunk))
            opened.model.to("cpu")
        seconds = time.monotonic() - started
        broken, columns = 0, 1 if opened.multilabel else top_k
        for row in unfinished.rows():
            broken, columns = broken + bool(row.error), max(columns, len(row.classes))
        with replace_atomically(output) as written:
            write_table(written, output.suffix, unfinished.rows(), columns)
        path.unlink()
    return Predicted(output, len(names), broken, before, seconds)


@contextmanager
def _written_alone(output: Path) -> Iterator[Path]:
    """The unfinished file beside the output, locked. ValueError where another process is writing the same table."""
    path = output.with_name(f".{output.name}.unfinished")
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"output: {str(output)!r} is being written by another process; wait for it") from error
        try:
            if not path.is_file() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                raise ValueError(f"output: {str(output)!r} was finished by another process just now")
            yield path
        finally:
            if path.is_file() and path.stat().st_size == 0:
                path.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)  # workers that decode have inherited it, and may live on


Stamp = list[int] | None
"""Size, modification and change time of a file, the times in nanoseconds; None for one that is not there."""


def _stamp(name: str) -> Stamp:
    try:
        found = Path(name).stat()
    except (OSError, ValueError):  # the latter for a zero byte in the name
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


class _Unfinished:
    """The rows so far. The first line is the key of the call that they belong to; rows of another call are dropped, and
    so are those from the first image on that is another now.
    """

    def __init__(self, path: Path, key: str, images: Sequence[tuple[str, Stamp]]) -> None:
        self.path, self._key, self._stamps = path, key, dict(images)
        self.num_rows = self._keep_valid_lines(images)

    def _keep_valid_lines(self, images: Sequence[tuple[str, Stamp]]) -> int:
        if not self.path.is_file():
            return 0
        with self.path.open("rb+") as file:
            if file.readline().decode(errors="replace") != self._key:
                if file.readline():
                    log.warning(
                        "%s holds rows of another model or of other options; they are predicted anew", self.path
                    )
                return 0
            count, end = 0, file.tell()
            for line, (name, stamp) in zip(file, images, strict=False):
                if not line.endswith(b"\n") or not _is_row(line, name, stamp):  # a process was killed while it wrote
                    break
                count, end = count + 1, end + len(line)
            file.truncate(end)
        return count

    def appending(self) -> TextIO:
        if self.num_rows:
            return self.path.open("a", encoding="utf-8")
        file = self.path.open("w", encoding="utf-8")
        file.write(self._key)
        file.flush()
        return file

    def line(self, row: Row) -> str:
        """The row with the stamp of its file, as a line."""
        return json.dumps(row.as_dict() | {"stamp": self._stamps[row.file]}) + "\n"

    def rows(self) -> Iterator[Row]:
        with self.path.open(encoding="utf-8") as file:
            for line in islice(file, 1, None):
                yield Row.from_dict(json.loads(line))


def _is_row(line: bytes, name: str, stamp: Stamp) -> bool:
    """Return whether a line is the row of that file, as it is now."""
    try:
        content = json.loads(line)
        return Row.from_dict(content).file == name and content["stamp"] == stamp
    except (ValueError, KeyError, TypeError):
        return False


def _key(opened: OpenedModel, top_k: int, precision: str) -> str:
    """Everything but the image that decides a row, as a line."""
    model = {"weights": opened.identity, "preprocessing": asdict(opened.preprocessing), "classes": opened.class_names}
    labels = {"thresholds": opened.thresholds} if opened.multilabel else {}
    return json.dumps({**model, **labels, "top_k": top_k, "precision": precision}) + "\n"


def _decoded(
    opened: OpenedModel, names: Sequence[str], batch_size: int, workers: int
) -> Iterator[tuple[Sequence[str], Decoded]]:
    source = FileSource(Path(), list(names), torch.zeros(len(names), dtype=torch.int64), [""])
    starts = range(0, len(names), batch_size)
    chunks = [list(range(start, min(start + batch_size, len(names)))) for start in starts]
    stream = ImageStream(
        EvaluationDecoder(source, opened.preprocessing), workers if len(names) >= MIN_IMAGES_FOR_WORKERS else 0
    )
    for chunk, batch in zip(chunks, stream.decode(chunks), strict=True):
        yield names[chunk[0] : chunk[-1] + 1], batch


Classify = Callable[[Sequence[str], Tensor], list[Classes]]


def _classifier(opened: OpenedModel, accelerator: Accelerator, top_k: int) -> Classify:
    """Names and uint8 images (n, 3, H, W) to the classes of each."""
    model, dtype, autocast = opened.module_on(accelerator.device).eval(), torch.float32, accelerator.autocast
    if opened.dtype != "auto":
        autocast = torch.inference_mode
    elif isinstance(model, Model):  # a copy without autocast is faster
        dtype = DTYPES[precision_of(accelerator)]
        model, autocast = for_inference(model, dtype), torch.inference_mode

    def classify(names: Sequence[str], images: Tensor) -> list[Classes]:
        pixels = normalize(images.to(accelerator.device), opened.preprocessing).to(dtype)
        with torch.inference_mode(), autocast():
            logits = model(pixels).float().cpu()
        check_finite(opened, names, logits)
        return likeliest(opened, logits, top_k)

    return classify


def _rows(chunk: Sequence[str], batch: Decoded, classify: Classify) -> Iterator[Row]:
    """A row for each name; broken images are not classified. `FailedRead` for one that the disk did not give."""
    for error in batch.broken.values():
        if isinstance(error, FailedRead):
            raise error
    intact = [row for row in range(len(chunk)) if row not in batch.broken]
    names = [chunk[row] for row in intact]
    found = dict(zip(intact, classify(names, batch.images[intact]), strict=True)) if intact else {}
    for row, name in enumerate(chunk):
        yield Row(name, error=batch.broken[row].reason) if row in batch.broken else Row(name, found[row])
