"""A comparison as Markdown and as one self-contained HTML page: no scripts, figures embedded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.comparison.tables import Table, all_tables, verdicts
from vit.evaluation.html_page import html_cell, html_definitions, html_document, html_figure, html_text
from vit.wording import counted, markdown_table


def data_summary(result: dict[str, Any]) -> str:
    """Describe the images and the resampling in one line."""
    data = result["data"]
    return (
        f"{counted(data['images'], 'image')} of {data['name']}, {data['classes']} classes, the same for every model, "
        f"each with its own preprocessing (fingerprint {data['fingerprint']}); {result['resamples']:,} resamples, seed "
        f"{result['seed']}."
    )


def page_title(result: dict[str, Any]) -> str:
    return " against ".join(model["name"] for model in result["models"])


@dataclass(frozen=True)
class Page:
    """The parts of a comparison's page in reading order; figures are given when it is written."""

    title: str
    about: str
    verdicts: list[str]
    warnings: list[str]
    tables: list[Table]
    conventions: Mapping[str, str]
    versions: Mapping[str, str]


def comparison_page(result: dict[str, Any]) -> Page:
    return Page(
        page_title(result),
        data_summary(result),
        verdicts(result),
        result["warnings"],
        all_tables(result),
        result["conventions"],
        result["versions"],
    )


# ------------------------------------------------------------------ Markdown


def page_markdown(page: Page, figures: Mapping[str, str]) -> str:
    """Build the Markdown; `figures`: path relative to the file → caption."""
    parts = [f"# {page.title}", page.about, *page.verdicts]
    if page.warnings:
        parts.append("**Not like for like:**\n\n" + "\n".join(f"- {line}" for line in page.warnings))
    for table in page.tables:
        shown = markdown_table(table.header, table.rows)
        parts.append(f"## {table.title}\n\n{shown}" + (f"\n\n{table.note}" if table.note else ""))
    parts += [f"![{caption}]({path})\n\n{caption}" for path, caption in figures.items()]
    parts.append("## Conventions\n\n" + "\n".join(f"- {name}: {meaning}" for name, meaning in page.conventions.items()))
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------ HTML


def page_html(page: Page, figures: Mapping[Path, str]) -> str:
    """Build the HTML page; `figures`: PNG file → caption."""
    made_with = ", ".join(f"{name} {number}" for name, number in page.versions.items())
    body = [
        f"<h1>{html_text(page.title)}</h1>",
        f'<p class="about">{html_text(page.about)}</p>',
        *(f'<p class="verdict">{html_text(line)}</p>' for line in page.verdicts),
        _warnings(page.warnings),
        *map(_table, page.tables),
        *(["<h2>Figures</h2>"] if figures else []),
        *(html_figure(path, caption) for path, caption in figures.items()),
        "<h2>Conventions</h2>",
        html_definitions(page.conventions),
        f'<p class="note">Made with {html_text(made_with)}.</p>',
    ]
    return html_document(page.title, body)


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
