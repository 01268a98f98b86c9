"""A comparison as Markdown and as one HTML page that needs nothing beside it: no scripts, pictures inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit.evaluation.comparison.tables import Table, all_tables, verdicts
from vit.evaluation.html_page import cell, definitions, document, figure, text


def about(result: dict[str, Any]) -> str:
    """On which images, in one line."""
    data = result["data"]
    return (
        f"{data['images']:,} images of {data['name']}, {data['classes']} classes, the same for every model, each with "
        f"its own preprocessing (fingerprint {data['fingerprint']}); {result['resamples']:,} resamples, seed "
        f"{result['seed']}."
    )


def title(result: dict[str, Any]) -> str:
    return " against ".join(model["name"] for model in result["models"])


# ------------------------------------------------------------------ Markdown


def markdown(result: dict[str, Any], pictures: Mapping[str, str]) -> str:
    """`pictures`: path beside the file → what it shows."""
    parts = [f"# {title(result)}", about(result), *verdicts(result)]
    if result["warnings"]:
        parts.append("**Not like for like:**\n\n" + "\n".join(f"- {line}" for line in result["warnings"]))
    parts += [_markdown_table(table) for table in all_tables(result)]
    parts += [f"![{words}]({path})\n\n{words}" for path, words in pictures.items()]
    parts.append("## Conventions\n\n" + "\n".join(f"- {name}: {text}" for name, text in result["conventions"].items()))
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [_line(table.header), _line(["---"] * len(table.header)), *map(_line, table.rows)]
    note = f"\n\n{table.note}" if table.note else ""
    return f"## {table.title}\n\n" + "\n".join(lines) + note


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ------------------------------------------------------------------ HTML


def page(result: dict[str, Any], pictures: Mapping[Path, str]) -> str:
    """`pictures`: PNG file → what it shows; their bytes go into the page."""
    body = [
        f"<h1>{text(title(result))}</h1>",
        f'<p class="about">{text(about(result))}</p>',
        *(f'<p class="verdict">{text(line)}</p>' for line in verdicts(result)),
        _warnings(result["warnings"]),
        *map(_table, all_tables(result)),
        "<h2>Pictures</h2>",
        *(figure(path, words) for path, words in pictures.items()),
        "<h2>Conventions</h2>",
        _conventions(result),
    ]
    return document(title(result), body)


def _warnings(lines: Sequence[str]) -> str:
    if not lines:
        return '<p class="note">Nothing that is known of the models makes the comparison other than like for like.</p>'
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<div class="warnings"><strong>Not like for like</strong><ul>{items}</ul></div>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{cell(words)}</th>' for words in table.header)
    rows = "".join(
        f'<tr><th scope="row">{cell(row[0])}</th>{"".join(f"<td>{cell(words)}</td>" for words in row[1:])}</tr>\n'
        for row in table.rows
    )
    note = f'<p class="note">{text(table.note)}</p>' if table.note else ""
    return f"<h2>{text(table.title)}</h2>\n<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>\n{note}"


def _conventions(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return f'{definitions(result["conventions"])}<p class="note">Made with {text(versions)}.</p>'
