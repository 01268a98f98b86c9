"""A run folder whose `state.json` is not ours ends a command in one line, whatever its hash says."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.tiny import tiny
from vit.cli import main
from vit.hub import open_model, run_checkpoint
from vit.runs import last_checkpoint
from vit.tasks.classification import report
from vit.training.loop import train

State = dict[str, Any]


def put(*path: str, value: Any) -> Callable[[State], State]:
    def change(state: State) -> State:
        inner = state
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value
        return state

    return change


def without(*path: str) -> Callable[[State], State]:
    def change(state: State) -> State:
        inner = state
        for name in path[:-1]:
            inner = inner[name]
        del inner[path[-1]]
        return state

    return change


EVERYWHERE: dict[str, Callable[[State], State]] = {
    "empty": lambda _: {},
    "of another program": lambda _: {"epoch": 3, "state_dict": "model.pt"},
    "no task": without("task"),
    "task null": put("task", value=None),
    "task a list": put("task", value=[]),
    "task empty": put("task", value={}),
    "no model": without("task", "model"),
    "model a string": put("task", "model", value="vit"),
    "model of no kind": without("task", "model", "kind"),
    "names too short": put("task", "class_names", value=["a"]),
    "names a string": put("task", "class_names", value="abc"),
    "names of numbers": put("task", "class_names", value=[1, 2, 3]),
    "a width in words": put("task", "model", "width", value="wide"),
    "another width": put("task", "model", "width", value=32),
    "a setting of no model": put("task", "model", "wings", value=2),
    "preprocessing null": put("task", "preprocessing", value=None),
    "preprocessing of one number": put("task", "preprocessing", "image_size", value=8),
    "another mean": put("task", "preprocessing", "mean", value=[0.1, 0.2, 0.3]),
    "another crop": put("task", "preprocessing", "crop_fraction", value=0.5),
    "another size": put("task", "preprocessing", "image_size", value=[16, 16]),
    "settings null": put("config", value=None),
    "settings a list": put("config", value=[]),
    "step in words": put("progress", "step", value="many"),
    "progress a number": put("progress", value=3),
    "best a list": put("best", value=[1, 2]),
    "best in words": put("best", value={"step": "first", "value": 0.5}),
}
TO_CONTINUE: dict[str, Callable[[State], State]] = {
    "no progress": without("progress"),
    "no settings": without("config"),
    "no precision": without("precision"),
    "no fingerprint": without("data_fingerprint"),
    "an unknown counter": put("progress", "laps", value=3),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("state") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw_run", lambda *_: None)
        train(tiny(), run)
    return run


def altered(trained: Path, target: Path, change: Callable[[State], State]) -> Path:
    """A copy in which every checkpoint's state was changed, and its hash with it."""
    shutil.copytree(trained, target)
    for folder in (target / "checkpoints").iterdir():
        state = change(json.loads((folder / "state.json").read_text()))
        (folder / "state.json").write_text(json.dumps(state))
        hashes = json.loads((folder / "hashes.json").read_text())
        hashes["state.json"] = hashlib.sha256((folder / "state.json").read_bytes()).hexdigest()
        (folder / "hashes.json").write_text(json.dumps(hashes))
    return target


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    lines = [line for line in said.splitlines() if line.startswith("vit:")]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    return lines[0]


@pytest.mark.parametrize("change", EVERYWHERE)
def test_a_state_that_is_not_ours_is_one_line(
    change: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = altered(trained, tmp_path / "run", EVERYWHERE[change])
    before = sorted(tmp_path.rglob("*"))
    for words in (["eval", str(run)], ["train", "--resume", str(run)]):
        assert main(words) == 2, words
        assert "step-0000000" in one_line(capsys), words
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("change", TO_CONTINUE)
def test_a_state_that_cannot_be_continued_is_one_line(
    change: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = altered(trained, tmp_path / "run", TO_CONTINUE[change])
    assert main(["train", "--resume", str(run)]) == 2
    assert "step-0000000" in one_line(capsys)


@pytest.mark.parametrize("step", ["build_model", "provenance_of_run"])
def test_an_error_of_the_machine_or_a_library_is_not_the_states(
    step: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("model: it needs 9 GiB")

    monkeypatch.setattr(run_checkpoint, step, fail)
    with pytest.raises(ValueError, match=r"step-0\d+: model: it needs 9 GiB$"):
        open_model(str(trained))


def test_what_is_ours_is_taken(trained: Path, tmp_path: Path) -> None:
    run = altered(trained, tmp_path / "run", lambda state: state)
    assert last_checkpoint(run) is not None
    assert main(["eval", str(run)]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "--output_dir", ""], "output_dir: '' is not valid"),
        (["plan", "--output_dir", " "], "output_dir: '' is not valid"),
        (["compare", "--train", "digits_vit"], "one recipe is compared with nothing"),
        (
            ["plan", "--config", "text/multi30k_transformer", "--data.test_parts", "[val]"],
            "'val' is the validation part",
        ),
    ],
)
def test_words_without_sense_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in one_line(capsys)
