"""Documents' commands parsed by the programs that they name, without being run."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

import pytest

from tests.docs.blocks import ROOT
from vit import settings
from vit.cli import COMMANDS, parsing
from vit.config.validation import setting_types
from vit.tasks import TASKS

SETTINGS = {name for task in TASKS.values() for name in setting_types(task.run_config)} | {"data"}
RESOLVES_SETTINGS = ("vit train", "vit plan", "vit profile", "vit compare --train")
"""Commands that read a configuration and check all of its settings, which is part of parsing."""


class Parsed(Exception):
    """Raised by the command's own parser when it has read all words, so that the command does not run."""


def check_parses(words: Sequence[str]) -> None:
    """AssertionError or ValueError for a command that its program would not take."""
    words = [word for word in words if word != "…"]
    while "=" in words[0]:  # variables of the environment
        words = words[1:]
    program, *rest = words
    if program == "vit":
        assert rest[0] in COMMANDS, f"there is no command {rest[0]!r}"
        _check_by_its_parser(COMMANDS[rest[0]], rest[1:])
    elif program in ("python", "torchrun"):
        _check_python(rest)
    elif program == "accelerate":
        from accelerate.commands.launch import launch_command_parser

        assert rest[0] == "launch"
        arguments = launch_command_parser().parse_args(rest[1:])
        _check_python([arguments.training_script, *arguments.training_script_args])
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = [name for word in rest if "[" in word for name in word.partition("[")[2].rstrip("]").split(",")]
        assert rest[0] == "install"
        assert set(named) <= set(extras)
    else:
        assert shutil.which(program) or program in ("cd", "source", "export", "ls"), f"there is no program {program!r}"


def _check_python(words: Sequence[str]) -> None:
    while words[0].startswith("--n"):  # torchrun's
        words = words[1:] if "=" in words[0] else words[2:]
    script, *rest = words
    if script in ("train.py", "eval.py"):
        _check_by_its_parser(COMMANDS[script.removesuffix(".py")], rest)
    elif script == "-m":
        assert find_spec(rest[0]), f"there is no module {rest[0]!r}"
        if rest[0] in ("benchmarks", "results"):
            from benchmarks.__main__ import BENCHMARKS
            from results.__main__ import _run

            _check_by_its_parser(*((BENCHMARKS[rest[1]], rest[2:]) if rest[0] == "benchmarks" else (_run, rest[1:])))
    else:
        assert (ROOT / script).is_file(), f"there is no file {script!r}"


def _check_by_its_parser(command: Callable[[list[str]], None], argv: list[str]) -> None:
    dotted = [word[2:].partition("=")[0] for word in argv if word.startswith("--") and "." in word.partition("=")[0]]
    assert set(dotted) <= SETTINGS, f"there are no such settings: {set(dotted) - SETTINGS}"
    parse, resolve = parsing.Parser.parse_known_args, settings.resolve_run

    def parse_known_args(self: parsing.Parser, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = parse(self, args, namespace)
        resolves = self.prog in RESOLVES_SETTINGS and not getattr(parsed, "resume", None)
        assert resolves or not unknown or unknown[0].startswith("--"), f"not expected: {unknown}"
        if not resolves:
            raise Parsed
        return parsed, unknown

    def resolve_run(*arguments: Any) -> NoReturn:
        resolve(*arguments)
        raise Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing.Parser, "parse_known_args", parse_known_args)
        patch.setattr(settings, "resolve_run", resolve_run)
        with pytest.raises(Parsed):
            command(list(argv))
