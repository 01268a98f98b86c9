"""How words are read: the parser, and the checks that need no room. Knows no tensors."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

DEFAULT_CONFIG = Path("configs/digits_vit.yaml")


class Parser(argparse.ArgumentParser):
    """argparse whose complaint is one line, and which guesses no option from its first letters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(f"{message}; see `{self.prog} --help`")


def run_parser(name: str, what: str) -> Parser:
    parser = Parser(
        prog=f"vit {name}",
        description=f"{what} Every setting of the file can be given as --section.setting; `config.yaml` in a run's "
        "folder lists them all, with their values, and so do the dataclasses in vit/config/.",
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="YAML file (default: %(default)s)")
    return parser


def check_folder(option: str, folder: Path | None) -> None:
    """ValueError where a folder cannot be made or written to, because a file is in its way or nobody may."""
    for place in () if folder is None else (folder, *folder.parents):
        if os.path.exists(place):  # noqa: PTH110  Path.exists raises below a folder that may not be entered
            if not place.is_dir():
                raise ValueError(f"{option}: {str(folder)!r} is not valid: {str(place)!r} is a file, not a folder")
            try:
                with tempfile.TemporaryFile(dir=place):
                    return
            except OSError as error:
                raise ValueError(
                    f"{option}: {str(folder)!r} is not valid: {str(place)!r} cannot be written to ({error.strerror})"
                ) from error


def check_file(option: str, file: Path | None) -> None:
    """ValueError where a file cannot be written, or none beside it: it is replaced, or a second one goes there."""
    if file is not None:
        if os.path.isdir(file):  # noqa: PTH112  as above
            raise ValueError(f"{option}: {str(file)!r} is not valid: it is a folder; give a file in it")
        if os.path.exists(file):  # noqa: PTH110
            if not os.path.isfile(file):  # noqa: PTH113
                raise ValueError(f"{option}: {str(file)!r} is not valid: it is a device or a pipe; give a file")
            if not os.access(file, os.W_OK):
                raise ValueError(f"{option}: {str(file)!r} is not valid: it is there and cannot be written to")
        check_folder(option, file.parent)


def refuse_without_effect(known: argparse.Namespace, parser: Parser, used: Collection[str], why: str) -> None:
    """ValueError for the first option of a MODEL's `parser` that was given and is not among the `used`."""
    usual = vars(parser.parse_args(["MODEL"]))
    for option, value in vars(known).items():
        if option not in used and value != usual.get(option, value):
            raise ValueError(f"--{option}: it has no effect here; {why}")


def is_main_process() -> bool:
    """One of however many there are."""
    return os.environ.get("RANK", "0") == "0"


def say(result: str) -> None:
    """Once, however many processes have it."""
    if is_main_process():
        print(result)
