"""`python -m benchmarks`: its list, help and exit codes, and one line for every error."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main
from tests.training.tiny import tiny
from vit.settings import dump_run_config


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_run_config(tiny(data={"fake_images": 42}), {}))
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["epoch", "--config", "RECIPE", "--output", "RECIPE/a.json"], "--output: "),
        (["epoch", "--config", "RECIPE", "--turns", "0"], "--turns: 0 is not valid"),
        (["data", "--config", "RECIPE", "--output", "FOLDER"], "it is a folder; give a file in it"),
        (["data", "--config", "RECIPE", "--output", "a.md"], "'a.md' is the name of the Markdown file"),
        (["attention", "--batch_sizes", "8", "0"], "--batch_sizes: 0 is not valid"),
        (["attention", "--models", "--batch_sizes", "-3"], "--batch_sizes: -3 is not valid"),
        (["attention", "--models", "--dtypes", "fp99"], "--dtypes: 'fp99' is not valid"),
        (["attention", "--models", "--tokens", "65"], "--tokens: it has no effect with --models"),
        (["forwards"], "there is no benchmark 'forwards'; did you mean 'forward'?"),
        (["growth", "--output", "RECIPE/new"], "is a file, not a folder"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str], expected: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.replace("RECIPE", str(recipe)).replace("FOLDER", str(tmp_path)) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("vit: ")
    assert said.count("\n") == 1
    assert expected in said


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in BENCHMARKS)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m benchmarks {name} ")
