"""Run folders whose files are missing, empty, altered or not ours, and what each command says of them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests.faults.malformed.trials import Case
from tests.training.tiny import tiny
from vit.tasks.classification import report
from vit.training.loop import train

RUN = "run"
Change = Callable[[Path], object]
State = dict[str, Any]


@cache
def trained() -> Path:
    """A small run that every case copies; its folder is removed when Python ends."""
    run = Path(_keep().name) / RUN
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "draw_run", lambda *_: None)
        train(tiny(), run)
    return run


@cache
def _keep() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def copy_run(folder: Path) -> Path:
    return Path(shutil.copytree(trained(), folder / RUN))


def with_run(change: Change, folder: Path) -> None:
    """A copy of the run, to which something was done."""
    change(copy_run(folder))


# ------------------------------------------------------------------ what was done to it


def write(name: str, content: str | bytes) -> Change:
    def change(run: Path) -> None:
        (run / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def remove(pattern: str) -> Change:
    def change(run: Path) -> None:
        for path in list(run.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def replace(name: str, make: Callable[[Path], object]) -> Change:
    """Something else in the place of a file."""

    def change(run: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return change


def cut(name: str, part: float) -> Change:
    def change(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: int(len(content) * part)])

    return change


def cut_after(name: str, words: str) -> Change:
    """The file up to the first of these words; a cut at a share of its bytes falls elsewhere with every new setting."""

    def change(run: Path) -> None:
        before, found, _ = (run / name).read_text().partition(words)
        assert found, f"{name} has no {words!r}"
        (run / name).write_text(before + found)

    return change


def edit(name: str, old: str, new: str) -> Change:
    def change(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        (run / name).write_text(text.replace(old, new))

    return change


def in_checkpoints(change: Callable[[Path], object]) -> Change:
    """The same done to every checkpoint, whose hashes are made to agree."""

    def change_all(run: Path) -> None:
        for folder in (run / "checkpoints").iterdir():
            change(folder)
            listed = {
                path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in folder.iterdir()
                if path.name != "hashes.json" and path.is_file()
            }
            (folder / "hashes.json").write_text(json.dumps(listed))

    return change_all


def in_hashes(change: Callable[[dict[str, Any]], object]) -> Change:
    def change_all(run: Path) -> None:
        for folder in (run / "checkpoints").iterdir():
            hashes = json.loads((folder / "hashes.json").read_text())
            result = change(hashes)
            (folder / "hashes.json").write_text(json.dumps(hashes if result is None else result))

    return change_all


def each_checkpoint(change: Callable[[Path], object]) -> Change:
    def change_all(run: Path) -> None:
        for folder in (run / "checkpoints").iterdir():
            change(folder)

    return change_all


MISSING = object()


def in_state(*path: str, value: object) -> Change:
    """A value of the state, at its path; hashes agree."""

    def change(folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text())
        inner = state
        for name in path[:-1]:
            inner = inner[name]
        inner.pop(path[-1], None)
        if value is not MISSING:
            inner[path[-1]] = value
        (folder / "state.json").write_text(json.dumps(state))

    return in_checkpoints(change)


# ------------------------------------------------------------------ the tables

TRAIN, EVAL, PREDICT = ("train", "--resume", RUN), ("eval", RUN), ("predict", RUN, "x.png")
ANALYZE, DIFF = ("analyze", RUN), ("diff", RUN, RUN)
EXPORT, COMPARE = ("export", RUN, "--format", "torch", "--output", "m.pt2"), ("compare", RUN, RUN)

CONFIGS: dict[str, Change] = {
    "missing": remove("config.yaml"),
    "empty": write("config.yaml", ""),
    "zeros": write("config.yaml", b"\0" * 4096),
    "cut after a line": cut_after("config.yaml", "\n  depth: 2"),
    "cut within a name": cut_after("config.yaml", "\n  dep"),
    "binary": write("config.yaml", bytes(range(256))),
    "a list": write("config.yaml", "- 1\n"),
    "a folder": replace("config.yaml", Path.mkdir),
    "a pipe": replace("config.yaml", os.mkfifo),
    "a link to nothing": replace("config.yaml", lambda path: path.symlink_to("nothing")),
    "not YAML": write("config.yaml", "model: {"),
    "another task": edit("config.yaml", "task: classification", "task: translation"),
    "no task that there is": edit("config.yaml", "task: classification", "task: banana"),
    "epochs in words": edit("config.yaml", "epochs: 2", "epochs: many"),
    "another width": edit("config.yaml", "width: 16", "width: 32"),
    "another data set": edit("config.yaml", "fake_classes: 3", "fake_classes: 4"),
    "an unknown setting": edit("config.yaml", "epochs: 2", "epochs: 2\n  laps: 3"),
    "fewer epochs": edit("config.yaml", "epochs: 2", "epochs: 1"),
    "another seed": edit("config.yaml", "seed: 0 ", "seed: 7 "),
    "aliases that multiply": write(
        "config.yaml",
        "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}\n" for n in range(1, 60)),
    ),
}
"""What is in the place of `config.yaml`; commands that continue or compare runs read it."""

CHECKPOINTS: dict[str, Change] = {
    "no checkpoints folder": remove("checkpoints"),
    "no checkpoint": remove("checkpoints/*"),
    "checkpoints a file": lambda run: (remove("checkpoints")(run), (run / "checkpoints").write_text("")),
    "empty checkpoints": each_checkpoint(lambda folder: [path.unlink() for path in folder.iterdir()]),
    "no hashes": remove("checkpoints/*/hashes.json"),
    "no state": remove("checkpoints/*/state.json"),
    "no model": remove("checkpoints/*/model.safetensors"),
    "hashes empty": each_checkpoint(lambda folder: (folder / "hashes.json").write_text("")),
    "hashes a list": in_hashes(lambda _: [1, 2]),
    "hashes of nothing": in_hashes(lambda _: {}),
    "hashes of numbers": in_hashes(lambda hashes: hashes.update(dict.fromkeys(hashes, 3))),
    "hashes of a file outside": in_hashes(lambda hashes: hashes.update({"../../config.yaml": "0" * 64})),
    "hashes of a folder": in_hashes(lambda hashes: hashes.update({"..": "0" * 64})),
    "hashes with a zero in a name": in_hashes(lambda hashes: hashes.update({"a\0b": "0" * 64})),
    "hashes with another value": in_hashes(lambda hashes: hashes.update({"state.json": "0" * 64})),
    "hashes null": in_hashes(lambda hashes: hashes.update({"state.json": None})),
    "state altered": each_checkpoint(lambda folder: (folder / "state.json").write_text("{}")),
    "state cut": each_checkpoint(lambda folder: cut("state.json", 0.5)(folder)),
    "model cut": each_checkpoint(lambda folder: cut("model.safetensors", 0.5)(folder)),
    "model a pipe": each_checkpoint(lambda folder: replace("model.safetensors", os.mkfifo)(folder)),
    "state a pipe": each_checkpoint(lambda folder: replace("state.json", os.mkfifo)(folder)),
    "state a folder": each_checkpoint(lambda folder: replace("state.json", Path.mkdir)(folder)),
    "hashes a pipe": each_checkpoint(lambda folder: replace("hashes.json", os.mkfifo)(folder)),
    "half-written": lambda run: [
        folder.rename(folder.with_name(f".writing-{folder.name}-1")) for folder in (run / "checkpoints").iterdir()
    ],
    "model empty, hashes agree": in_checkpoints(lambda folder: (folder / "model.safetensors").write_bytes(b"")),
    "model of bytes, hashes agree": in_checkpoints(
        lambda folder: (folder / "model.safetensors").write_bytes(b"a" * 99)
    ),
    "model cut, hashes agree": in_checkpoints(lambda folder: cut("model.safetensors", 0.7)(folder)),
    "state a number, hashes agree": in_checkpoints(lambda folder: (folder / "state.json").write_text("3")),
    "state not JSON, hashes agree": in_checkpoints(lambda folder: (folder / "state.json").write_text("{")),
    "state very deep, hashes agree": in_checkpoints(
        lambda folder: (folder / "state.json").write_text('{"a":' * 50_000 + "1" + "}" * 50_000)
    ),
    "state binary, hashes agree": in_checkpoints(lambda folder: (folder / "state.json").write_bytes(bytes(range(256)))),
}

STATES: dict[tuple[str, ...], list[object]] = {
    ("task",): [MISSING, None, [], {}, "classification", 3],
    ("task", "model"): [MISSING, None, "vit", [], {}, {"kind": "vit"}],
    ("task", "model", "kind"): [MISSING, "banana", None, 3],
    ("task", "model", "width"): ["wide", 32, 0, -16, None, 10**9, 1.5],
    ("task", "model", "depth"): [3, 0, 10**8, "deep"],
    ("task", "model", "image_size"): [[8], 8, "8", [8, 9], [0, 0], None],
    ("task", "model", "wings"): [2],
    ("task", "class_names"): [MISSING, None, [], ["a"], "abc", [1, 2, 3], ["a", "b", "c", "d"], {"a": 1}],
    ("task", "preprocessing"): [MISSING, None, [], "none", {}],
    ("task", "preprocessing", "image_size"): [8, [16, 16], [8], "8", [8, -8]],
    ("task", "preprocessing", "mean"): [[0.1, 0.2, 0.3], [0.5], "grey", None],
    ("task", "preprocessing", "std"): [[0, 0, 0], [0.1] * 3],
    ("task", "preprocessing", "crop_fraction"): [0.5, 0, "all"],
    ("task", "preprocessing", "interpolation"): ["lanczos", "nearest"],
    ("config",): [MISSING, None, [], "settings"],
    ("config", "task"): ["banana", None, ["classification"], "translation"],
    ("config", "train"): ["long", None],
    ("best",): [[1, 2], "first", 3, {"step": "first", "value": 0.5}, {"value": 0.5}],
    ("progress",): [None, 3, []],
    ("progress", "step"): ["many", -1, None, 1.5],
}
"""Path in a checkpoint's state → values that are not ours; hashes agree, as of one who altered both."""

TO_CONTINUE: dict[tuple[str, ...], list[object]] = {
    ("progress",): [MISSING, {}],
    ("progress", "epoch"): [MISSING, -1, "two", 10**9],
    ("progress", "step"): [MISSING, 10**9],
    ("progress", "laps"): [3],
    ("progress", "stretches"): ["long", [3], [{"from_step": -1, "machine": None, "commit": None}]],
    ("precision",): [MISSING, "fp64", 3],
    ("data_fingerprint",): [MISSING, "0" * 12, None],
    ("config", "seed"): [5],
    ("config", "optim"): [MISSING, {"name": "banana"}],
}
"""The same for what only a continued run reads."""

HISTORIES: dict[str, Change] = {
    "no history": remove("metrics.jsonl"),
    "an empty history": write("metrics.jsonl", ""),
    "a history of zeros": write("metrics.jsonl", b"\0" * 4096),
    "a history of lists": write("metrics.jsonl", "[1]\n[2]\n"),
    "half a history": cut("metrics.jsonl", 0.5),
    "a binary history": write("metrics.jsonl", bytes(range(256))),
    "no summary": remove("summary.json"),
    "an empty summary": write("summary.json", ""),
    "no figures": remove("figures"),
    "no lock": remove("lock.json"),
    "a lock of words": write("lock.json", "mine"),
    "a lock of a dead process": write("lock.json", json.dumps({"host": os.uname().nodename, "process": 2**22 - 1})),
    "a half-written checkpoint": lambda run: (run / "checkpoints" / ".writing-step-00000009-1").mkdir(),
}
"""What a finished run can lack: `vit eval` takes it all the same."""

SUMMARIES: dict[str, Change] = {
    "half": cut("summary.json", 0.5),
    "binary": write("summary.json", bytes(range(256))),
    "a list": write("summary.json", "[1]"),
    "a pipe": replace("summary.json", os.mkfifo),
    "a folder": replace("summary.json", Path.mkdir),
    "very deep": write("summary.json", '{"a":' * 50_000 + "1" + "}" * 50_000),
    "empty": write("summary.json", ""),
}
"""Of two runs that `vit diff` compares."""


def image(folder: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8), (90, 120, 30)).save(folder / "x.png")


def _write(change: Change, folder: Path) -> None:
    with_run(change, folder)
    image(folder)


def _shown(value: object) -> str:
    return "missing" if value is MISSING else repr(value)[:40]


def _states() -> Iterator[Case]:
    for number, (path, values) in enumerate(STATES.items()):
        for value in values:
            name, change = f"{'.'.join(path)} = {_shown(value)}", in_state(*path, value=value)
            for command in (EVAL, TRAIN, (PREDICT, EXPORT, COMPARE, ANALYZE)[number % 4]):
                yield Case(f"state: {name}: {command[0]}", partial(_write, change), command)
    for path, values in TO_CONTINUE.items():
        for value in values:
            name = f"{'.'.join(path)} = {_shown(value)}"
            yield Case(f"to continue: {name}", partial(_write, in_state(*path, value=value)), TRAIN)


TAKEN = {
    "config.yaml cut after a line: diff": "what is left holds settings, and the rest have their defaults",
    "config.yaml another width: diff": "they are settings",
    "config.yaml another data set: diff": "they are settings",
    "config.yaml fewer epochs: diff": "they are settings",
    "summary, a pipe: diff": "a run without a summary has not ended",
    "summary, a folder: diff": "a run without a summary has not ended",
}
"""Names of cases of the tables of what is refused that are right all the same, and why."""


def _cases(part: str, changes: dict[str, Change], *commands: tuple[str, ...]) -> Iterator[Case]:
    for name, change in changes.items():
        for command in commands:
            title = f"{part} {name}: {command[0]}"
            yield Case(title, partial(_write, change), command, taken=TAKEN.get(title, ""))


def cases() -> list[Case]:
    found = [
        *_cases("config.yaml", CONFIGS, TRAIN, DIFF),
        *_cases("checkpoints,", CHECKPOINTS, EVAL, TRAIN, PREDICT),
        *_states(),
        *_cases("summary,", SUMMARIES, DIFF),
    ]
    found += [
        Case(f"{name}", partial(_write, change), EVAL, taken="an evaluation needs the checkpoint alone")
        for name, change in HISTORIES.items()
    ]
    return found
