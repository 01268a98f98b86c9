"""The code blocks of the documents, and the commands in them.

A block is fenced or indented by four spaces; indented ones hold commands. `<!-- not run: REASON -->` before a block
keeps it from being run, not from being parsed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted(ROOT.glob("docs/*.md")),
)
_BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n+)?"
    r"(?:```(?P<language>\w*)\n(?P<fenced>.*?)^```$|(?<=\n\n)(?P<indented>(?:    [^\n]*\n|\n(?=    ))+))",
    re.MULTILINE | re.DOTALL,
)
_SEPARATORS = {"&&", "|", ";", ">", "<"}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    not_run: str | None
    """The reason."""

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    blocks = []
    for found in _BLOCK.finditer(text):
        fenced = found["fenced"] is not None
        code = found["fenced"] if fenced else re.sub("^    ", "", found["indented"], flags=re.MULTILINE)
        line = text.count("\n", 0, found.start("fenced" if fenced else "indented")) + 1
        blocks.append(Block(page, line, found["language"] if fenced else "sh", code, found["reason"]))
    return blocks


def read_commands(text: str) -> Iterator[list[str]]:
    """The commands of a shell block, one after the other, without comments; `|` and `&&` part commands."""
    words: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        for word in (*lexer, ";"):
            if word not in _SEPARATORS:
                words.append(word)
            elif words:
                yield words
                words = []


def read_session(text: str) -> Iterator[tuple[list[str], str]]:
    """The commands of a session, each behind `$ `, and what is printed after it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield shlex.split(command), printed
