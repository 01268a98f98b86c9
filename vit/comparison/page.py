"""A comparison as Markdown and as one self-contained HTML page: no scripts, figures embedded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit.comparison.tables import Table, all_tables, verdicts
from vit.evaluation.html_page import html_cell, html_definitions, html_document, html_figure, html_text


def data_summary(result: dict[str, Any]) -> str:
    """Describe the images and the resampling in one line."""
    data = result["data"]
    return (
        f"{data['images']:,} images of {data['name']}, {data['classes']} classes, the same for every model, each with "
        f"its own preprocessing (fingerprint {data['fingerprint']}); {result['resamples']:,} resamples, seed "
        f"{result['seed']}."
    )


def page_title(result: dict[str, Any]) -> str:
    return " against ".join(model["name"] for model in result["models"])


# ------------------------------------------------------------------ Markdown


def comparison_markdown(result: dict[str, Any], figures: Mapping[str, str]) -> str:
    """Build the Markdown; `figures`: path relative to the file → caption."""
    parts = [f"# {page_title(result)}", data_summary(result), *verdicts(result)]
    if result["warnings"]:
        parts.append("**Not like for like:**\n\n" + "\n".join(f"- {line}" for line in result["warnings"]))
    for table in all_tables(result):
        lines = [_line(table.header), _line(["---"] * len(table.header)), *map(_line, table.rows)]
        parts.append(f"## {table.title}\n\n" + "\n".join(lines) + (f"\n\n{table.note}" if table.note else ""))
    parts += [f"![{caption}]({path})\n\n{caption}" for path, caption in figures.items()]
    parts.append(
        "## Conventions\n\n" + "\n".join(f"- {name}: {meaning}" for name, meaning in result["conventions"].items())
    )
    return "\n\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(html_cell.replace("|", "\\|") for html_cell in cells) + " |"


# ------------------------------------------------------------------ HTML


def comparison_html(result: dict[str, Any], figures: Mapping[Path, str]) -> str:
    """Build the page; `figures`: PNG file → caption."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    body = [
        f"<h1>{html_text(page_title(result))}</h1>",
        f'<p class="about">{html_text(data_summary(result))}</p>',
        *(f'<p class="verdict">{html_text(line)}</p>' for line in verdicts(result)),
        _warnings(result["warnings"]),
        *map(_table, all_tables(result)),
        "<h2>Figures</h2>",
        *(html_figure(path, caption) for path, caption in figures.items()),
        "<h2>Conventions</h2>",
        html_definitions(result["conventions"]),
        f'<p class="note">Made with {html_text(versions)}.</p>',
    ]
    return html_document(page_title(result), body)


def _warnings(lines: Sequence[str]) -> str:
    if not lines:
        return '<p class="note">Nothing known about the models speaks against comparing them like for like.</p>'
    items = "".join(f"<li>{html_text(line)}</li>" for line in lines)
    return f'<div class="warnings"><strong>Not like for like</strong><ul>{items}</ul></div>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html_cell(words)}</th>' for words in table.header)
    rows = ""
    for first, *others in table.rows:
        cells = "".join(f"<td>{html_cell(words)}</td>" for words in others)
        rows += f'<tr><th scope="row">{html_cell(first)}</th>{cells}</tr>\n'
    note = f'<p class="note">{html_text(table.note)}</p>' if table.note else ""
    body = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>"
    return f"<h2>{html_text(table.title)}</h2>\n{body}\n{note}"
