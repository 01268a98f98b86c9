"""`vit analyze`: every figure of a model in a folder, its numbers beside it, and one HTML page with all of it.

Finished figures are kept: stopped and called again with the same model and images, it continues where it was.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vit.analysis.figures import FIGURES
from vit.analysis.targets import AnalysisTarget
from vit.analysis.unsupported import Unsupported
from vit.config import check_arguments, nearest
from vit.data.images import fingerprint
from vit.evaluation.cache_key import last_modified
from vit.evaluation.html_page import html_definitions, html_document, html_figure, html_text
from vit.runs import put_aside, write_json
from vit.versions import computing_versions
from vit.wording import counted

logger = logging.getLogger(__name__)
STATE = "analysis.json"
PROBE = "layer_probe"
_TITLES = {"layer_similarity": "Similarity of the blocks", PROBE: "Linear probe after every block"}
"""Titles of the figures that are not called by their names."""
ProgressFn = Callable[[str], None]
"""Called with a line for each finished figure."""


@check_arguments
def draw_analysis(
    target: AnalysisTarget,
    folder: str | Path,
    names: Sequence[str] = tuple(FIGURES),
    progress: ProgressFn = logger.info,
) -> dict[str, Any]:
    """Each of the named figures as PNG, SVG and JSON (some as CSV too) in `folder/figures`, and `folder/analysis.html`.

    Returns the content of `analysis.json`: `pictures` with their captions, and the reasons of those `left_out`.
    ValueError for a name that is no figure.
    """
    for name in names:
        if name not in FIGURES:
            raise ValueError(f"--figures: {name!r} is not valid: {nearest(name, FIGURES)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = begun_analysis(_made_of(target), folder)
    if PROBE in names:
        _put_earlier_probe_aside(state, target, folder)
    for place, name in enumerate(names, start=1):
        if _is_finished(name, state, folder):
            duration = "kept"
        else:
            start = time.perf_counter()
            state["left_out"].pop(name, None)
            try:
                drawn = FIGURES[name](target)
                drawn.save(folder / "figures" / name)
                state["pictures"][name] = drawn.caption
            except Unsupported as error:
                state["left_out"][name] = _reason(error)
            write_json(folder / STATE, state)
            duration = f"{time.perf_counter() - start:.1f} s"
        left_out = " (left out)" if name in state["left_out"] else ""
        progress(f"{place} of {len(names)}: {name}{left_out}, {duration}")
    (folder / "analysis.html").write_text(analysis_page(state, folder), encoding="utf-8")
    return state


def _reason(error: Unsupported) -> str:
    """The error's line without the words for a caller: `ResNet: it has no …`."""
    return re.sub(r"^\w+: (.+?) is not valid: ", r"\1: ", str(error))


def _is_finished(name: str, state: dict[str, Any], folder: Path) -> bool:
    """A figure that was left out is tried again: what it lacked, such as training images, may be there by now."""
    return name in state["pictures"] and all(file.is_file() for file in _files_of(name, folder)[:-1])


def _files_of(name: str, folder: Path) -> list[Path]:
    """The files of a figure; some have no table, which is the last."""
    return [folder / "figures" / f"{name}{suffix}" for suffix in (".png", ".svg", ".json", ".csv")]


def _made_of(target: AnalysisTarget) -> dict[str, Any]:
    return {
        "model": target.name,
        "weights": target.identity,
        "computed_by": target.implementation,
        "against": None if target.against is None else _against(target.against),
        "class_names": list(target.class_names),
        "image_classes": list(target.images.class_names),
        "images": len(target.images.names),
        "images_of": target.images.source,
        "image_size": list(target.preprocessing.image_size),
        "preprocessing": str(target.preprocessing),
        "fingerprint": target.images.fingerprint,
        "versions": computing_versions(),
    }


def _against(target: AnalysisTarget) -> list[str]:
    return [target.name, target.identity, str(target.preprocessing)]


def begun_analysis(made_of: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read what `folder` has of an analysis made of this, as JSON stores it; one of anything else is put aside.

    ValueError for a damaged state.
    """
    path = folder / STATE
    if path.exists():
        try:
            state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(state, dict):
                raise ValueError("it is no object")
        except ValueError as error:
            raise ValueError(
                f"--output_dir: {path} cannot be read as an analysis ({error}); move it, or name another folder"
            ) from error
        if state.get("made_of") == made_of:
            there = {name: text for name, text in state["pictures"].items() if _is_finished(name, state, folder)}
            return state | {"pictures": there}
        _put_aside(folder, state.get("pictures", ()))
    return {"made_of": made_of, "pictures": {}, "left_out": {}}


def _put_aside(folder: Path, pictures: Iterable[str]) -> None:
    """Move an earlier analysis, of another model or other images, to a folder of its own."""
    files = [folder / STATE, folder / "analysis.html"]
    earlier = put_aside(folder, [*files, *(file for name in pictures for file in _files_of(name, folder))])
    print(f"note: the analysis in {folder} is of another model or other data, and is in {earlier} now", file=sys.stderr)


def _put_earlier_probe_aside(state: dict[str, Any], target: AnalysisTarget, folder: Path) -> None:
    """The probe is the only figure that reads training images, so only it is drawn anew where these have changed."""
    try:
        training = [fingerprint(target.probe_images), last_modified(target.probe_images)]
    except (OSError, Unsupported, ValueError):  # not here, or not readable: the probe says so when its turn comes
        return
    if state.get("training_images") != training and state["pictures"].pop(PROBE, None) is not None:
        earlier = put_aside(folder, _files_of(PROBE, folder))
        print(f"note: {PROBE} in {folder} may be of other training images, and is in {earlier} now", file=sys.stderr)
    state["training_images"] = training


def figures_by_reason(state: dict[str, Any]) -> dict[str, list[str]]:
    """Why figures were left out → their names."""
    grouped: dict[str, list[str]] = {}
    for name, reason in state["left_out"].items():
        grouped.setdefault(reason, []).append(name)
    return grouped


def analysis_page(state: dict[str, Any], folder: Path) -> str:
    """The HTML page with the finished figures in it."""
    made_of = state["made_of"]
    versions = ", ".join(f"{name} {number}" for name, number in made_of["versions"].items())
    height, width = made_of["image_size"]
    body = [
        f"<h1>Inside {html_text(made_of['model'])}</h1>",
        f'<p class="about">{counted(made_of["images"], "image")} of {html_text(made_of["images_of"])} at '
        f"{height}×{width} pixels (fingerprint {made_of['fingerprint']}); weights {made_of['weights']}.</p>",
    ]
    for name, caption in state["pictures"].items():
        body += [
            f"<h2>{html_text(analysis_title(name))}</h2>",
            html_figure(folder / "figures" / f"{name}.png", caption),
        ]
        csv = f", figures/{name}.csv" if (folder / "figures" / f"{name}.csv").exists() else ""
        body.append(f'<p class="note">Numbers and conventions: figures/{name}.json{csv}.</p>')
    if state["left_out"]:
        body += [
            "<h2>Left out</h2>",
            html_definitions(
                {", ".join(map(analysis_title, names)): why for why, names in figures_by_reason(state).items()}
            ),
        ]
    body.append(f'<p class="note">Made with {html_text(versions)}.</p>')
    return html_document(f"Inside {made_of['model']}", body)


def analysis_title(name: str) -> str:
    return _TITLES.get(name, name.replace("_", " ").capitalize())
