"""Execute notebooks, by default all, and store them with their outputs: `python notebooks/execute.py [FILE …]`.

Each one runs from top to bottom in an empty folder with one thread, so that anyone who executes it gets the same
numbers and no run of an earlier day is read. Progress (stderr) is not stored; warnings, absolute paths and addresses of
objects are refused. Seconds and images/s stand in lines that begin with `time:`; `tests/notebooks` compares the numbers
of all others.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parent
LARGEST = 1_500_000
"""Bytes of a stored notebook; a browser shows it without waiting."""
KERNEL = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm, without ipywidgets: no progress bar is wanted
}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_DIFFERS_ELSEWHERE = re.compile(r"(?<![\w.~/:])/(?:home|root|tmp|usr|opt|work|Users|var)/\S*|\bat 0x[0-9a-f]+")


def execute(path: Path, variables: Mapping[str, str] | None = None) -> NotebookNode:
    """The notebook with new outputs. ValueError naming the cell that warns or whose output has traces of the machine.

    Other errors are the notebook's own, as nbclient's `CellExecutionError`.
    """
    notebook = nbformat.read(path, as_version=4)
    imported = os.pathsep.join([str(FOLDER.parent), str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **KERNEL, "PYTHONPATH": imported, **(variables or {})}
    with tempfile.TemporaryDirectory() as empty:
        client = NotebookClient(
            notebook, timeout=600, kernel_name="python3", record_timing=False, resources={"metadata": {"path": empty}}
        )
        client.execute(env=environment)
    for cell in code_cells(notebook):
        for output in cell.outputs:
            _check_output(output, f"{path.name}, cell {cell.id}")
        cell.outputs = _joined([output for output in cell.outputs if output.get("name") != "stderr"])
        cell.metadata.pop("execution", None)
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _with_fewer_colours(output.data["image/png"])
    notebook.metadata = nbformat.from_dict(METADATA)
    return notebook


def code_cells(notebook: NotebookNode) -> Iterator[NotebookNode]:
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def text_of(output: NotebookNode) -> str:
    """Text that was printed, or shown as text or Markdown; empty for a picture, whose text only stands in for it."""
    if output.output_type == "stream":
        return output.text
    data = output.get("data", {})
    return "" if "image/png" in data else data.get("text/markdown") or data.get("text/plain", "")


def store(path: Path, notebook: NotebookNode) -> int:
    """Write the notebook; returns its bytes. ValueError above `LARGEST`."""
    text = nbformat.writes(notebook) + "\n"
    size = len(text.encode())
    if size > LARGEST:
        raise ValueError(f"{path.name}: {size:,} bytes is not valid: at most {LARGEST:,}; draw smaller pictures")
    path.write_text(text, encoding="utf-8")
    return size


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs with neighbouring pieces of a stream as one: how it was cut depends on the moment."""
    joined: list[NotebookNode] = []
    for output in outputs:
        if joined and output.output_type == "stream" and joined[-1].get("name") == output.name:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _check_output(output: NotebookNode, place: str) -> None:
    text = text_of(output)
    if output.get("name") == "stderr":
        warning = next((line for line in text.splitlines() if "Warning" in line), None)
        if warning:
            raise ValueError(f"{place}: it warns: {warning}")
    elif found := _DIFFERS_ELSEWHERE.search(text):
        raise ValueError(f"{place}: {found[0]!r} differs on another machine; print a relative path")


def _with_fewer_colours(png: str) -> str:
    """A picture (PNG in base64) with a palette of 256 colours: a third of the bytes."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    written = io.BytesIO()
    picture.save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        print(f"{path.name}: {store(path, execute(path)):,} bytes", flush=True)
