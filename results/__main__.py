"""`python -m results`: keep a run's record, or write the documents' numbers and pictures from the records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from vit.cli import run_command
from vit.cli.parsing import Parser

_DESCRIPTION = """\
keep RUN NAME: keep a finished run's record as results/NAME/seedN. write: write every number between markers in README,
docs and configs. draw: draw the documents' pictures of records. check: an error that names the files in which a number
is stale."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    return run_command(_run, list(sys.argv[1:] if argv is None else argv))


def _run(argv: list[str]) -> None:
    parser = Parser(prog="python -m results", description=_DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)
    keep = commands.add_parser("keep")
    keep.add_argument("run", type=Path, metavar="RUN")
    keep.add_argument("name", metavar="NAME")
    keep.add_argument("--command", dest="made_by", required=True, help="the command that made the run")
    keep.add_argument("--circumstances", required=True, help="threads, and what else the machine did")
    keep.add_argument("--commit", help="of the program, where the run does not name it")
    keep.add_argument("--machine", help="where the run does not name it")
    commands.add_parser("write")
    commands.add_parser("draw")
    commands.add_parser("check")
    args = parser.parse_args(argv)
    if args.command == "keep":
        from results import records

        made = {"commit": args.commit, "machine": args.machine}
        print(records.keep(args.run, args.name, args.made_by, args.circumstances, **made))
        return
    if args.command == "draw":
        from results.pictures import ABLATIONS, BY_IMAGES, PICTURES, draw

        for name in (*PICTURES, *BY_IMAGES, *ABLATIONS):
            print(f"drawn: {draw(name)}")
        return
    from results.documents import stale

    files = stale()
    if args.command == "check" and files:
        raise ValueError(f"results: stale: {', '.join(map(str, files))}; write them by `python -m results write`")
    for file, text in files.items():
        file.write_text(text)
        print(f"written: {file}")


if __name__ == "__main__":
    sys.exit(main())
