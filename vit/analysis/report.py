"""`vit analyze`: every figure of a model in a folder, its numbers beside it, and one HTML page with all of it.

What is finished is kept: stopped and called again with the same model and images, it goes on where it was. Knows
neither how a figure is drawn nor how a model was trained.
"""

from __future__ import annotations

import json
import logging
import platform
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vit.analysis.drawings import DRAWINGS
from vit.analysis.picture import Picture
from vit.analysis.subjects import Subject
from vit.config import nearest
from vit.evaluation.comparison.report import write_csv
from vit.evaluation.html_page import definitions, document, figure, text
from vit.figures.style import save_figure
from vit.runs import write_json

logger = logging.getLogger(__name__)
STATE = "analysis.json"
Tell = Callable[[str], None]


def draw_analysis(
    subject: Subject, folder: Path, names: Sequence[str] = tuple(DRAWINGS), tell: Tell = logger.info
) -> dict[str, Any]:
    """Each of the named figures as PNG, SVG and JSON (some as CSV too) in `folder/figures`, and `folder/analysis.html`.

    Returns what the page is made of, which is also in `analysis.json`: `pictures`, and what was `left_out` and why.
    ValueError for a name that is no figure.
    """
    for name in names:
        if name not in DRAWINGS:
            raise ValueError(f"--figures: {name!r} is not valid: {nearest(name, DRAWINGS)}")
    folder.mkdir(parents=True, exist_ok=True)
    state = _begun(subject, folder)
    for place, name in enumerate(names, start=1):
        if not _is_finished(name, state, folder):
            start = time.perf_counter()
            _draw(subject, name, folder, state)
            write_json(folder / STATE, state)
            known = f"{time.perf_counter() - start:.1f} s"
        else:
            known = "kept"
        left_out = f" (left out: {state['left_out'][name]})" if name in state["left_out"] else ""
        tell(f"{place} of {len(names)}: {name}{left_out}, {known}")
    (folder / "analysis.html").write_text(page(state, folder), encoding="utf-8")
    return state


def _is_finished(name: str, state: dict[str, Any], folder: Path) -> bool:
    files = [(folder / "figures" / name).with_suffix(suffix) for suffix in (".png", ".svg", ".json")]
    return name in state["left_out"] or (name in state["pictures"] and all(file.is_file() for file in files))


def _begun(subject: Subject, folder: Path) -> dict[str, Any]:
    """What the folder holds of this subject; figures of any other are deleted. ValueError for a damaged state."""
    made_of = {
        "model": subject.name,
        "weights": subject.identity,
        "against": None if subject.against is None else [subject.against.name, subject.against.identity],
        "images": len(subject.images.names),
        "images_of": subject.images.source,
        "image_size": list(subject.preprocessing.image_size),
        "preprocessing": str(subject.preprocessing),
        "fingerprint": subject.images.fingerprint,
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("vit", "torch", "torchvision", "timm")},
        },
    }
    path = folder / STATE
    if path.exists():
        try:
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"--output: {path} is damaged ({error}); delete it to begin anew") from error
        if state.get("made_of") == made_of:
            return state
        for name in state.get("pictures", ()):
            for suffix in (".png", ".svg", ".json", ".csv"):
                (folder / "figures" / name).with_suffix(suffix).unlink(missing_ok=True)
    return {"made_of": made_of, "pictures": {}, "left_out": {}}


def _draw(subject: Subject, name: str, folder: Path, state: dict[str, Any]) -> None:
    try:
        picture = DRAWINGS[name](subject)
    except ValueError as error:
        state["left_out"][name] = str(error)
        return
    save_picture(picture, folder / "figures" / name)
    state["pictures"][name] = picture.words


def save_picture(picture: Picture, path: Path) -> None:
    """PNG, SVG, JSON and, where there are rows, CSV, under one name."""
    for suffix in (".png", ".svg"):
        save_figure(picture.figure, path.with_suffix(suffix), picture.numbers)
    if picture.rows:
        write_csv(path.with_suffix(".csv"), picture.rows)


def page(state: dict[str, Any], folder: Path) -> str:
    """The page of what was drawn; pictures inside."""
    made_of = state["made_of"]
    versions = ", ".join(f"{name} {number}" for name, number in made_of["versions"].items())
    height, width = made_of["image_size"]
    body = [
        f"<h1>Inside {text(made_of['model'])}</h1>",
        f'<p class="about">{made_of["images"]:,} images of {text(made_of["images_of"])} at {height}×{width} pixels '
        f"(fingerprint {made_of['fingerprint']}); weights {made_of['weights']}.</p>",
    ]
    for name, words in state["pictures"].items():
        body += [f"<h2>{text(title(name))}</h2>", figure(folder / "figures" / f"{name}.png", words)]
        csv = f", figures/{name}.csv" if (folder / "figures" / f"{name}.csv").exists() else ""
        body.append(f'<p class="note">Numbers and conventions: figures/{name}.json{csv}.</p>')
    if state["left_out"]:
        body += ["<h2>Left out</h2>", definitions({title(name): why for name, why in state["left_out"].items()})]
    body.append(f'<p class="note">Made with {text(versions)}.</p>')
    return document(f"Inside {made_of['model']}", body)


def title(name: str) -> str:
    return name.replace("_", " ").capitalize()
