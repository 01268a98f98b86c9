"""The page of public names: `python -m tests.api_page docs/api.md` writes it, and a test compares it with the code."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGES = (
    *("vit", "vit.hub", "vit.attention", "vit.analysis", "vit.evaluation", "vit.comparison", "vit.weights"),
    "vit.figures",
)
MOST_PARAMETERS = 6
CONSTANTS = {"BACKENDS": "The ways to compute attention, by name."}
"""What is neither a function, a class nor a module has no docstring of its own."""
HEAD = """# Public names

What the packages export, each with the beginning of its signature and its line. Everything is imported when it is first
asked for: `import vit` loads no torch, and matplotlib comes with the first figure. `help(NAME)` says the rest: shapes,
units, errors, sources.
"""


def page() -> str:
    """The whole page."""
    sections = [HEAD]
    for package in PACKAGES:
        module = import_module(package)
        rows = [row(name, getattr(module, name)) for name in module.__all__]
        title = f"## `{package}`\n\n{first_paragraph(module)}\n"
        sections.append("\n".join((title, "| name | |", "|---|---|", *rows)) + "\n")
    return "\n".join(sections)


def row(name: str, value: Any) -> str:
    return f"| `{signature(name, value)}` | {CONSTANTS.get(name) or first_paragraph(value)} |"


def signature(name: str, value: Any) -> str:
    """The name and, of a function, its parameters: those after the sixth as an ellipsis."""
    if not inspect.isfunction(value):
        return name
    words: list[str] = []
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        star = "*" * (parameter.kind == parameter.VAR_POSITIONAL) + "**" * (parameter.kind == parameter.VAR_KEYWORD)
        has_default = parameter.default is not parameter.empty
        is_plain = isinstance(parameter.default, str | int | float | None)
        default = (f"={parameter.default!r}" if is_plain else "=…") if has_default else ""
        words.append(f"{star}{parameter.name}{default}")
    most = MOST_PARAMETERS + ("*" in words)
    return f"{name}({', '.join(words[:most] + ['…'] * (len(words) > most))})"


def first_paragraph(value: Any) -> str:
    """The beginning of a docstring, in one line."""
    assert value.__doc__, f"{value} has no docstring"
    return " ".join(inspect.cleandoc(value.__doc__).split("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
