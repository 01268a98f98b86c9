"""Parts that all commands share: a parser with `--output`, lines of progress, writing the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vit.cli.parsing import Parser


def progress(text: str) -> None:
    """Print a line of progress to standard error, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def benchmark_parser(name: str, description: str, turns: int | None = 5) -> Parser:
    """A parser with `--output`, and `--turns` where there are turns."""
    parser = Parser(prog=f"python -m benchmarks {name}", description=description)
    if turns is not None:
        parser.add_argument("--turns", type=int, default=turns, help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    return parser


def write_result(result: Any, output: Path | None, *, show: bool = False) -> None:
    """Write the result as JSON, if there is an `output`; `show` prints it too."""
    from vit.runs import write_json

    if show:
        print(json.dumps(result, indent=2))
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_json(output, result)
