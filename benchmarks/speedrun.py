"""From images on the disk to the accuracy on the test set: wall time of whole `vit train` processes over seeds.

The time runs from the start of the process to its end, so that imports, opening the data, validation, the test and the
pictures are in it. A machine that does something else as well is refused, before a seed and after it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine_load import Load
from benchmarks.whole_process import ProcessFailed
from vit.config import check
from vit.evaluation.statistics import p_above
from vit.processor import machine
from vit.runs import make_folder, put_aside, write_json
from vit.settings import flat_settings, resolve_run
from vit.tasks.classification import require_classification

CONVENTIONS = {
    "seconds": "wall time of the process `vit train`, from its start to its end",
    "start": "until the run's folder has its settings: imports, opening the data, building the model",
    "steps": "all optimizer steps, reading and augmenting included (summary.json)",
    "between": "validation and checkpoints, until the history has its last line",
    "test": "the last checkpoint, the test set, predictions and pictures",
    "other_load": "share of all cores that other processes, and the host, took meanwhile",
    "p": "one-sided t-test over seeds: the chance of these accuracies if the true mean were at the bar",
}
_SAMPLE = 2.0
"""Seconds for which the load is watched before a seed."""
_POLL = 0.1
_KEPT = ("seed", "test.top1", "epochs", "images_seen", "params", "gmacs", "precision", "commit")
"""Keys of a run's summary that are kept."""


def speedrun(
    config: str, overrides: Sequence[str], seeds: Sequence[int], folder: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train and test with each of the seeds, one after another. Finished seeds in `folder` are not repeated, unless the
    options or the settings in `config` have changed: then the earlier run and its record are put aside.

    ValueError for another task, and for a damaged record, before anything is trained. BusyMachine if other processes
    take more than `machine_load.MOST_OTHER_LOAD`; ProcessFailed for a run that fails.
    """
    rows = []
    asked_run = require_classification(resolve_run(config, list(overrides), "--config").config, "--config", config)
    settings = flat_settings(asked_run)
    make_folder(folder)
    asked = {"words": [config, *overrides], "settings": json.loads(json.dumps(settings))}
    records = {seed: folder / f"seed{seed}.json" for seed in seeds}
    measured = {seed: _read_record(record) for seed, record in records.items()}
    for seed, record in records.items():
        row, run = measured[seed], folder / f"seed{seed}"
        if row is not None and all(row.get(name, value) == value for name, value in asked.items()):
            say(f"seed {seed}: {describe(row)}, measured before")
        else:
            if row is not None:  # the record last, so that it is never gone before all of its run is aside
                earlier = put_aside(folder, [*sorted(run.rglob("*")), run.with_suffix(".log"), record])
                say(f"seed {seed}: measured before with other options or settings; that run is in {earlier} now")
            row = {**asked, **run_seed(config, overrides, seed, run)}
            write_json(record, row)
            say(f"seed {seed}: {describe(row)}")
        rows.append({name: value for name, value in row.items() if name != "settings"})
    return {"config": config, "overrides": list(overrides), "runs": rows, **over_seeds(rows)}


def _read_record(file: Path) -> dict[str, Any] | None:
    """A seed's row, None where there is none; those of earlier versions have no settings. ValueError if damaged."""
    if not file.is_file():
        return None
    try:
        row = json.loads(file.read_text())
    except ValueError:
        row = None
    rule = "it is damaged; remove it, and its seed is measured again"
    check(isinstance(row, dict) and {"words", *_KEPT[:2], "parts"} <= row.keys(), "--folder", str(file), rule)
    return dict(row)


def run_seed(config: str, overrides: Sequence[str], seed: int, run: Path) -> dict[str, Any]:
    """Accuracy, wall time and its parts, and the machine, of one run; one in that place that did not end is removed."""
    load = Load()
    time.sleep(_SAMPLE)
    load.refuse()
    if run.exists():
        shutil.rmtree(run)
    run.parent.mkdir(parents=True, exist_ok=True)
    words = ["train", "--config", config, *overrides, "--seed", str(seed), "--output_dir", str(run)]
    load, begun = Load(), time.time()
    own, marks = _run_process([sys.executable, "-m", "vit.cli", *words], run)
    seconds = time.time() - begun
    share = load.refuse(own)
    summary = json.loads((run / "summary.json").read_text())
    parts = {
        "start": marks["config.yaml"] - begun,
        "steps": summary["seconds"],
        "between": marks["metrics.jsonl"] - marks["config.yaml"] - summary["seconds"],
        "test": begun + seconds - marks["metrics.jsonl"],
    }
    kept = {name: summary[name] for name in _KEPT}
    return {**kept, "seconds": seconds, "parts": parts, "other_load": share, "machine": machine(summary["device"])}


def over_seeds(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means and, of several seeds, standard deviations of accuracy and seconds."""
    found = {}
    for name in ("test.top1", "seconds"):
        values = [row[name] for row in rows]
        found[f"{name}.mean"] = statistics.fmean(values)
        if len(values) > 1:
            found[f"{name}.sd"] = statistics.stdev(values)
    return found


def above(rows: Sequence[dict[str, Any]], bar: float) -> dict[str, Any]:
    """Whether the mean accuracy is above `bar` (a fraction) at p < 0.01. ValueError for a single seed."""
    p = p_above([row["test.top1"] for row in rows], bar)
    return {"bar": bar, "p": p, "met": p < 0.01}


def describe(row: dict[str, Any]) -> str:
    """One line: accuracy, minutes and where they went."""
    parts = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in row["parts"].items())
    return f"{row['test.top1']:.2%} in {row['seconds'] / 60:.1f} minutes ({parts})"


def _run_process(words: list[str], run: Path) -> tuple[float, dict[str, float]]:
    """Run `vit train` to its end: its processor seconds, children included, and when its files were written.

    These are the times at which the settings were there, and of the last line of the history. ProcessFailed with the
    last line of a process that fails.
    """
    log, marks = run.with_suffix(".log"), dict[str, float]()
    with log.open("w") as out, subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT) as process:
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(_POLL)
            for name in ("config.yaml", "metrics.jsonl"):
                if name not in marks and (run / name).is_file():
                    marks[name] = (run / name).stat().st_mtime
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = log.read_text().strip().splitlines()
        raise ProcessFailed(
            f"vit train: exit code {process.returncode}: {lines[-1] if lines else 'it printed nothing'}"
        )
    marks["metrics.jsonl"] = (run / "metrics.jsonl").stat().st_mtime
    return usage.ru_utime + usage.ru_stime, marks
