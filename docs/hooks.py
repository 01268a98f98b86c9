"""The site's pages that are not files of docs/: from the code, and from README and others at the top of the repository.

mkdocs calls the `on_…` (`hooks` in mkdocs.yml). In the site docs/ and the repository's root are one folder, and
links are changed by that alone.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from vit.cli import COMMANDS
from vit.config.descriptions import SettingDescription, describe_settings
from vit.tasks import TASKS
from vit.wording import markdown_table

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    *("ARCHITECTURE.md", "CONTRIBUTING.md", "LOG.md", "benchmarks/results/*.md", "benchmarks/results/*.png"),
    "notebooks/*.ipynb",
)
"""What pages link to outside docs/."""
PACKAGES = (
    *("vit", "vit.attention", "vit.analysis", "vit.comparison", "vit.deployment", "vit.evaluation", "vit.figures"),
    *("vit.hub", "vit.prediction", "vit.weights"),
)
"""Packages with public names."""


_HOME = "---\nhide: [navigation]\n---\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/ and those from the code."""
    for path in (path for pattern in OUTSIDE for path in sorted(ROOT.glob(pattern))):
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    files.append(File.generated(config, "index.md", content=_HOME + (ROOT / "README.md").read_text(encoding="utf-8")))
    files.append(File.generated(config, "configuration.md", content=configuration_page()))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for package in PACKAGES:
        files.append(File.generated(config, f"api/{package}.md", content=api_page(package)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links between docs/ and the repository's root, which are one folder in the site."""
    return re.sub(r"(?<=\]\()(?:\.\./|docs/)", "", markdown)


def api_page(package: str) -> str:
    """The public names of a package, for mkdocstrings."""
    module = import_module(package)
    names = "\n".join(f"::: {package}.{name}" for name in module.__all__)
    return f"# `{package}`\n\n{module.__doc__}\n\n{names}\n"


def configuration_page() -> str:
    """Every setting of every task, by section."""
    lines = [_CONFIGURATION]
    classification = describe_settings(TASKS["classification"].run_config)
    for task in TASKS.values():
        lines.append(f"## Task `{task.name}`\n")
        for section, settings in describe_settings(task.run_config).items():
            if task.name != "classification" and settings == classification.get(section):
                lines.append(f"Section `{section}`: as for classification.\n")
                continue
            lines.append(f"### {f'`{section}`' if section else 'The run'} {{ #{task.name}-{section or 'run'} }}\n")
            lines += [*_settings_table(settings), ""]
    return "\n".join(lines)


_CONFIGURATION = """\
# Configuration

Every setting of a training run, from the dataclasses in `vit/config/` and `vit/tasks/*/config.py`. In a YAML file
settings stand in their sections; on the command line they are `--section.setting VALUE`, or `--setting VALUE` where no
other section has a setting of that name. The command line overrides the file, and the file the defaults. An unknown
setting, a value of another type and a setting without effect are errors. `vit plan` prints what a configuration amounts
to, and `config.yaml` in the run's folder says where each value came from.

In the section `model`, null means: as in the architecture that `model.name` names.
"""


def _settings_table(settings: list[SettingDescription]) -> Iterator[str]:
    rows = []
    for each in settings:
        text = f"{each.values[0].upper()}{each.values[1:]}. {each.text}".strip()
        rows.append((f"`{each.name}`", f"`{each.default}`", text))
    yield markdown_table(("setting", "default", ""), rows)


def commands_page() -> str:
    """`--help` of every command; the settings of training have their own page."""
    parts = ["# Commands\n\nThe `--help` of every command.\n"]
    for words in (*((name,) for name in COMMANDS), ("compare", "--finetune"), ("compare", "--train")):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            COMMANDS[words[0]]([*words[1:], "--help"])
        text = said.getvalue().partition("settings of task ")[0].rstrip()
        parts.append(f"## `vit {' '.join(words)}`\n\n```text\n{text}\n```\n")
    return "\n".join(parts)
