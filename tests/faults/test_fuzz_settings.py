"""Settings at random, from Python, a file and the command line: each is a configuration, or refused in one line."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vit.config.validation import make_settings, setting_types
from vit.models import resolve
from vit.settings import flat_settings, resolve_run
from vit.tasks import TASKS

KINDS = {task: folder.run_config for task, folder in TASKS.items()}
LONGEST_LINE = 2_000

numbers = st.one_of(
    st.integers(-3, 40),
    st.integers(),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 10**400]),
    st.floats(-2, 2),
    st.floats(),
)
letters = st.text(st.characters(codec="utf-8"), max_size=12)
words = st.one_of(
    letters, st.sampled_from(["", " ", "null", "true", "3", "1e-3", "[1]", "\0", "a/b", "..", "~", "{", "🐈"])
)
scalars = st.one_of(st.none(), st.booleans(), numbers, words)
confused = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)


def near(hint: Any) -> st.SearchStrategy[Any]:
    """Values that the annotation may allow, so that the rules between settings are reached too."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        each = near(inner[0])
        return (
            st.lists(each, max_size=3) if inner[-1] is Ellipsis else st.lists(each, min_size=1, max_size=len(inner) + 1)
        )
    if inner:
        return st.one_of(*map(near, inner))
    plain = {int: st.integers(0, 64), float: st.floats(0, 2), bool: st.booleans(), str: words}
    return plain.get(hint, st.none())


@st.composite
def chosen(draw: st.DrawFn, task: str) -> dict[str, Any]:
    """A few settings of the task with values of any type."""
    types = setting_types(KINDS[task])
    names = draw(st.lists(st.sampled_from(sorted(types)), min_size=1, max_size=5, unique=True))
    values = {name: draw(st.one_of(near(types[name]), confused)) for name in names}
    return values if draw(st.booleans()) else values | draw(st.dictionaries(words, confused, max_size=2))


def verdict(make: Any, *arguments: Any) -> Any:
    """The configuration; or None, where it was refused in one line that begins with the name of a setting."""
    try:
        return make(*arguments)
    except ValueError as error:
        line = str(error)
        assert line.strip(), "an empty line"
        assert "\n" not in line, line
        assert len(line) < LONGEST_LINE, line
        return None


FUZZ = settings(
    deadline=timedelta(seconds=10),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


def check_python(values: dict[str, Any], task: str) -> None:
    config: Any = verdict(make_settings, KINDS[task], {"task": task} | values)
    if config is not None:
        assert make_settings(type(config), flat_settings(config)) == config
        if task in ("classification", "multilabel"):
            verdict(resolve, config.model, 3)


def check_file(values: dict[str, Any], task: str, folder: Path) -> None:
    file = folder / "c.yaml"
    file.write_text(yaml.safe_dump({"task": task} | values, allow_unicode=True))
    verdict(resolve_run, file)


def check_words(values: dict[str, Any], task: str, folder: Path) -> None:
    file = folder / "c.yaml"
    file.write_text(f"task: {task}\n")
    for joined in (True, False):
        pairs = (
            (f"--{name}", value if isinstance(value, str) else json.dumps(value)) for name, value in values.items()
        )
        verdict(
            resolve_run, file, [f"{o}={v}" for o, v in pairs] if joined else [word for pair in pairs for word in pair]
        )


@pytest.mark.parametrize("task", KINDS)
@FUZZ
@given(data=st.data())
def test_settings_at_random(task: str, data: st.DataObject, tmp_path: Path) -> None:
    values = data.draw(chosen(task))
    check_python(values, task)
    check_file(values, task, tmp_path)
    check_words(values, task, tmp_path)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("task", KINDS)
@settings(FUZZ, max_examples=3_000)
@given(data=st.data())
def test_many_settings_at_random(task: str, data: st.DataObject, tmp_path: Path) -> None:
    values = data.draw(chosen(task))
    check_python(values, task)
    check_file(values, task, tmp_path)
    check_words(values, task, tmp_path)
