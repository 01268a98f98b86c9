"""A comparison as Markdown and as one HTML page that needs nothing beside it: no scripts, pictures inside."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vit.evaluation.comparison.tables import Table, all_tables, verdicts

_STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1b1b1b; background: #fff;
  max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.25rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #d4d4d4; padding-bottom: .2rem; }
p, li { max-width: 50rem; }
.about, .note, figcaption { color: #555; font-size: .88rem; }
.verdict { font-size: 1.05rem; }
.warnings { background: #fff6e0; border-left: 4px solid #b36b00; padding: .6rem 1rem; margin: 1rem 0; }
.warnings ul { margin: .3rem 0; padding-left: 1.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .32rem .6rem .32rem 0; border-bottom: 1px solid #e6e6e6; vertical-align: top;
  overflow-wrap: anywhere; }
th { font-weight: 600; }
thead th { border-bottom: 1.5px solid #777; }
tbody th { font-weight: 400; color: #444; overflow-wrap: normal; }
figure { margin: 1.2rem 0; break-inside: avoid; }
figure img { max-width: 100%; height: auto; }
dl { font-size: .86rem; } dt { font-weight: 600; margin-top: .4rem; } dd { margin: 0; color: #444; max-width: 50rem; }
@media print { body { max-width: none; padding: 0; font-size: 10.5pt; } h2 { break-after: avoid; }
  tr { break-inside: avoid; } .warnings { border: 1px solid #b36b00; } }
"""


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
        f"<h1>{_text(title(result))}</h1>",
        f'<p class="about">{_text(about(result))}</p>',
        *(f'<p class="verdict">{_text(line)}</p>' for line in verdicts(result)),
        _warnings(result["warnings"]),
        *map(_table, all_tables(result)),
        "<h2>Pictures</h2>",
        *(_figure(path, words) for path, words in pictures.items()),
        "<h2>Conventions</h2>",
        _conventions(result),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{_text(title(result))}'
    style = f"</title><style>{_STYLE}</style>"
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{style}</head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _text(words: str) -> str:
    return html.escape(words)


def _warnings(lines: Sequence[str]) -> str:
    if not lines:
        return '<p class="note">Nothing that is known of the models makes the comparison other than like for like.</p>'
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<div class="warnings"><strong>Not like for like</strong><ul>{items}</ul></div>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in table.header)
    rows = "".join(
        f'<tr><th scope="row">{_text(row[0])}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in row[1:])}</tr>\n'
        for row in table.rows
    )
    note = f'<p class="note">{_text(table.note)}</p>' if table.note else ""
    return (
        f"<h2>{_text(table.title)}</h2>\n<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>\n{note}"
    )


def _figure(path: Path, words: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    image = f'<img alt="{_text(words)}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{_text(words)}</figcaption></figure>"


def _conventions(result: dict[str, Any]) -> str:
    entries = "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in result["conventions"].items())
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return f'<dl>{entries}</dl><p class="note">Made with {_text(versions)}.</p>'
