"""Records: what is kept of a run in `results/NAME/seedN/`, a few kilobytes each.

`config.yaml` and `summary.json` are the run's own, `metrics.jsonl` is its history thinned to a line an epoch, and
`record.json` says how the run was made: command, commit, machine, and what else the machine did meanwhile.
"""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from vit.config import check, nearest
from vit.runs import make_folder, write_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
_PLACE = "output_dir:"
"""The setting that is not kept: where the run lay."""


@dataclass(frozen=True)
class Record:
    """One run: the name that it is kept under, its summary, and how it was made."""

    name: str
    summary: dict[str, Any]
    made: dict[str, Any]


def keep(
    run: Path, name: str, command: str, circumstances: str, *, commit: str | None = None, machine: str | None = None
) -> Path:
    """Copy what is kept of a finished run to `results/NAME/seedN/` and return that folder.

    `commit` of the program and `machine` are for a run that does not name them itself. ValueError for a run that has
    not finished, where one of them is not known or given twice, and where a run of that name and seed is kept already.
    """
    summary_file = run / "summary.json"
    check(summary_file.is_file(), "RUN", str(run), "it has no summary.json: give the folder of a finished run")
    summary = json.loads(summary_file.read_text())
    settings = (run / "config.yaml").read_text()
    planned = (yaml.safe_load(settings).get("train") or {}).get("epochs")
    told = summary.get("epochs")  # of fewer, where a finished run was continued and has not ended
    rule = f"its summary is of {told} epochs and its settings say {planned}: finish it with vit train --resume {run}"
    check(planned in (None, told), "RUN", str(run), rule)
    made = dict[str, str]()
    for fact, given in (("commit", commit), ("machine", machine)):
        own = summary.get(fact)
        check(not (given and own), f"--{fact}", given, f"the run names {own!r} itself; leave it out")
        check(bool(given or own), f"--{fact}", given, f"the run names no {fact}, and a record must; pass it")
        made[fact] = given or own
    folder = RESULTS / name / f"seed{summary['seed']}"
    check(not folder.exists(), "NAME", name, f"{folder} is the record of another run; remove it first")
    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    make_folder(folder.parent)
    with TemporaryDirectory(prefix=".keeping-", dir=folder.parent) as place:
        record = Path(place, "record")
        record.mkdir()
        shutil.copyfile(summary_file, record / "summary.json")
        kept = (line for line in settings.splitlines(keepends=True) if not line.startswith(_PLACE))
        (record / "config.yaml").write_text("".join(kept))
        (record / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in thinned(history)))
        write_json(record / "record.json", {"command": command, **made, "circumstances": circumstances})
        record.rename(folder)
    return folder


def thinned(history: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each epoch's last line about training, and every line about validation."""
    for row, following in zip(history, [*history[1:], {}][: len(history)], strict=True):
        if "train.loss" not in row or row["epoch"] != following.get("epoch"):
            yield row


def record_names() -> list[str]:
    return sorted({str(file.parents[1].relative_to(RESULTS)) for file in RESULTS.glob("**/seed*/record.json")})


def read_records(name: str) -> list[Record]:
    """The runs kept under a name, by seed. ValueError where there is none."""
    folders = sorted((RESULTS / name).glob("seed*"), key=lambda folder: int(folder.name.removeprefix("seed")))
    if not folders:
        raise ValueError(f"results: there is no record {name!r}; {nearest(name, record_names())}")
    return [
        Record(name, *(json.loads((folder / file).read_text()) for file in ("summary.json", "record.json")))
        for folder in folders
    ]


def shared(records: Sequence[Record], key: str) -> Any:
    """A number that is told once for all runs kept under a name. ValueError where their summaries differ in it."""
    first, *others = records
    for other in others:
        seeds = f"{key} {first.summary[key]!r} with seed {first.summary['seed']}"
        rule = f"its runs have {seeds} and {other.summary[key]!r} with seed {other.summary['seed']}; keep them apart"
        check(other.summary[key] == first.summary[key], "results", first.name, rule)
    return first.summary[key]


def percent(values: Sequence[float], digits: int = 2) -> str:
    """A fraction as a percentage; of several runs their mean ± standard deviation."""
    return f"{mean_and_spread([100 * value for value in values], digits)} %"


def mean_and_spread(values: Sequence[float], digits: int) -> str:
    """The mean, and of several values ± their standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")
