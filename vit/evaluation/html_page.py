"""A self-contained HTML page: no scripts, images embedded."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_STYLE = """
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1b1b1b; background: #fff;
  max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.25rem 3rem; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #d4d4d4; padding-bottom: .2rem; }
p, li { max-width: 50rem; }
.about, .note, figcaption { color: #555; font-size: .88rem; }
.verdict { font-size: 1.05rem; }
.warnings { background: #fff6e0; border-left: 4px solid #b36b00; padding: .6rem 1rem; margin: 1rem 0; }
.warnings ul { margin: .3rem 0; padding-left: 1.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .32rem .6rem .32rem 0; border-bottom: 1px solid #e6e6e6; vertical-align: top;
  overflow-wrap: break-word; }
th { font-weight: 600; }
thead th { border-bottom: 1.5px solid #777; }
tbody th { font-weight: 400; color: #444; }
figure { margin: 1.2rem 0; break-inside: avoid; }
figure img { max-width: 100%; height: auto; }
dl { font-size: .86rem; } dt { font-weight: 600; margin-top: .4rem; } dd { margin: 0; color: #444; max-width: 50rem; }
@media print { body { max-width: none; padding: 0; font-size: 10.5pt; } h2 { break-after: avoid; }
  tr { break-inside: avoid; } .warnings { border: 1px solid #b36b00; } }
"""


def html_document(title: str, body: Sequence[str]) -> str:
    """Build the page; `body` is HTML."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html_text(title)}</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def html_text(words: str) -> str:
    """Escape text for HTML."""
    return html.escape(words)


def html_cell(words: str) -> str:
    """Escape text of a table cell and let long names break at punctuation."""
    return re.sub(r"(?<=\w)([_./:])(?=[A-Za-z])", r"\1<wbr>", html_text(words))


def html_figure(path: Path, words: str) -> str:
    """Embed a PNG file, with a caption under it."""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    image = f'<img alt="{html_text(words)}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{html_text(words)}</figcaption></figure>"


def html_definitions(entries: Mapping[str, str]) -> str:
    """Build a list of terms and their definitions."""
    items = (f"<dt>{html_text(name)}</dt><dd>{html_text(words)}</dd>" for name, words in entries.items())
    return f"<dl>{''.join(items)}</dl>"
