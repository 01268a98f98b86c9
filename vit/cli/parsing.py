"""Argument parsing shared by the commands."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from vit.config import is_data_set

DEFAULT_CONFIG, OWN_IMAGES = "digits_vit", "your_images"
_NUMBERS_OF_PROCESSES = ("--gpus", "--num_gpus", "--n_gpus", "--ngpus", "--devices", "--num_processes", "--world_size")
_PROCESSES = "a launcher starts several processes: accelerate launch --num_processes 2 train.py …"
_CHECKPOINTS = ("--checkpoint", "--ckpt")
_NAMES_OF_MODELS = ("--run", "--model", "--models", "--source", "--checkpoint", "--ckpt")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises one-line errors and does not accept abbreviated options.

    `answers`: options that one may look for here → what to type instead.
    """

    def __init__(self, *, answers: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._answers = answers or {}

    def error(self, message: str) -> None:  # type: ignore[override]
        raise ValueError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; an empty word, as a shell makes of a variable that is not set, is refused.

        So is an option that is given twice, of which only the last would count. `--output-dir` is `--output_dir`, as
        it is for settings.
        """
        args = [self._with_underscores(word) for word in args]
        self._refuse_names_of_positionals(args)
        option, seen = "", set[str]()
        for word in args:
            if word.startswith("--"):
                option, has_value, value = word.partition("=")
                is_empty = bool(has_value) and not value.strip()
                if option in seen:
                    self.error(f"{option}: it is given twice; give it once")
                seen |= {option} & set(self._option_string_actions)
            else:
                is_empty = not word.strip()
            if option in self._answers and word.startswith("--"):
                raise ValueError(f"{option}: there is no such option; {self._answers[option]}")
            if is_empty and (not option or option in self._option_string_actions):
                self.error(f"{option or 'argument'}: {word.partition('=')[2]!r} is not valid: it is empty")
        return super().parse_known_args(args, namespace)

    def _refuse_names_of_positionals(self, words: Sequence[str]) -> None:
        """An option such as `--run X` where MODEL stands without one."""
        first = next((action for action in self._actions if not action.option_strings), None)
        for place, word in enumerate(words):
            option, _, value = word.partition("=")
            if first is not None and option in _NAMES_OF_MODELS and option not in self._option_string_actions:
                shown = value or "".join(words[place + 1 : place + 2]) or str(first.metavar)
                if shown in ("best", "last") and "--select" in self._option_string_actions:
                    self.error(f"{option}: there is no such option; did you mean --select {shown}?")
                if option in _CHECKPOINTS and "--select" in self._option_string_actions and not Path(shown).exists():
                    self.error(f"{option}: there is no such option; --select best or last chooses a checkpoint")
                self.error(f"{option}: {first.metavar} is given without an option: {self.prog} {shown}")

    def _with_underscores(self, word: str) -> str:
        option, equals, value = word.partition("=")
        meant = f"--{option[2:].replace('-', '_')}"
        is_meant = option.startswith("--") and option not in self._option_string_actions
        return f"{meant}{equals}{value}" if is_meant and meant in self._option_string_actions else word

    def parse_with_settings(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The command's own options, and the words of settings. ValueError for an option that is nearly an own one."""
        from vit.settings import ends_setting

        args, others = self.parse_known_args(words)
        own = [option for option in self._option_string_actions if option.startswith("--")]
        for word in others:
            option = word.partition("=")[0]
            near = get_close_matches("--resume" if option == "--run" else option, own, n=1, cutoff=0.75)
            if near and option.startswith("--") and not ends_setting(option[2:].replace("-", "_")):
                raise ValueError(f"{option}: there is no such option or setting; did you mean {near[0]}?")
        return args, others

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse; an unknown option is named with the one that is nearest to it."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings if option.startswith("--")]
            word = unknown[0].partition("=")[0]
            meant = get_close_matches(word, known, n=1) or [option for option in known if option.startswith(word)]
            if "--data" in known and not word.startswith("-") and os.path.exists(word):  # noqa: PTH110  as below
                meant = [f"--data {word}"]
            hint = f"; did you mean {meant[0]}?" if meant else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed


class _KeepingLines(argparse.HelpFormatter):
    """Wraps the description, and leaves the lines of the settings as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n\n" in text else super()._fill_text(text, width, indent)


class _HelpAll(argparse.Action):
    """Print the help with another epilog, `const`, and leave."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.epilog = self.const
        parser.print_help()
        parser.exit()


def run_parser(name: str, description: str) -> Parser:
    from vit.config.descriptions import settings_table
    from vit.tasks import DEFAULT_TASK, TASKS

    about = f"settings of task {DEFAULT_TASK} with their defaults, which the file and then the command line override"
    kind = TASKS[DEFAULT_TASK].run_config
    parser = Parser(
        prog=f"vit {name}",
        description=f"{description} Every setting of the file can be given as --section.setting, without its section "
        "if no other has a setting of that name; `config.yaml` in a run's folder has all, with values and origins.",
        epilog=f"{about}\n\n{settings_table(kind)}",
        formatter_class=_KeepingLines,
        answers=dict.fromkeys(_NUMBERS_OF_PROCESSES, _PROCESSES),
    )
    whole = f"{about}\n\n{settings_table(kind, whole=True)}"
    parser.add_argument(
        "--help-all", action=_HelpAll, const=whole, help="like --help, with the full description of every setting"
    )
    default = f"default: {DEFAULT_CONFIG}, or {OWN_IMAGES} if --data is a folder or file"
    text = f"YAML file, or the name of a packaged configuration ({default})"
    parser.add_argument("--config", help=text)
    return parser


def add_at_once_option(parser: Parser) -> None:
    text = "runs trained at the same time, each in a process with its share of the cores (default: %(default)s)"
    parser.add_argument("--at_once", type=int, default=1, metavar="N", help=text)


def chosen_config(given: str | None, overrides: Sequence[str]) -> str:
    """`--config`, else the configuration that suits the data: own images where `--data` is a place, or digits."""
    if given is not None:
        return given
    words = [part for word in overrides for part in word.split("=", 1)]
    places = [place for option, place in pairwise(words) if option == "--data"]
    own = any(Path(place).exists() and not is_data_set(place) for place in places)
    return OWN_IMAGES if own else DEFAULT_CONFIG


def split_settings(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate `--section.setting value` pairs from all other arguments, in any order."""
    settings: list[str] = []
    rest: list[str] = []
    remaining = iter(argv)
    for word in remaining:
        if word.startswith("--") and "." in word.split("=")[0]:
            settings += [word] if "=" in word else [word, *islice(remaining, 1)]
        else:
            rest.append(word)
    return settings, rest


def refuse_without_effect(args: argparse.Namespace, parser: Parser, used: Collection[str], why: str) -> None:
    """Raise ValueError for an option that was given and is not in `used`; `parser` takes one MODEL."""
    defaults = vars(parser.parse_args(["MODEL"]))
    for option, value in vars(args).items():
        if option not in used and value != defaults.get(option, value):
            raise ValueError(f"--{option}: it has no effect here; {why}")


def is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def print_once(result: str) -> None:
    """Print in the main process only."""
    if is_main_process():
        print(result)
