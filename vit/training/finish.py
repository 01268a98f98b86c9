"""The end of a run: the test set, read once, and a summary of every measured number."""

from __future__ import annotations

import platform
from typing import Any

from vit.evaluation.cost import count_parameters
from vit.runs import find_checkpoint, flush_tree, read_checkpoint, read_metrics, write_json
from vit.sharding import load_full
from vit.tasks.task import Rates
from vit.training.schedule import has_followed, rate_curve
from vit.training.session import Session
from vit.training.trackers import end_trackers, log_to_trackers
from vit.versions import package_versions


def finish_run(session: Session) -> dict[str, Any]:
    """Evaluate the best and the last weights on the test set, write everything, and return the summary.

    Every process evaluates its share; the main one writes.
    """
    report, goal = session.report, session.goal
    group = "model" if session.average is None else "ema"
    results: dict[str, Any] = {}
    steps: dict[str, int] = {}
    for select in ("last", "best"):
        checkpoint = read_checkpoint(find_checkpoint(session.run, select), [group])
        load_full(session.unwrapped_model, checkpoint.tensors[group])
        steps[select] = int(checkpoint.state["progress"]["step"])
        same = select == "best" and steps["best"] == steps["last"]
        results[select] = results["last"] if same else report.test(session.model, checkpoint.state["task"])
    best = session.progress.best
    assert best is not None, "the last epoch is always validated"
    if steps["best"] == best["step"]:
        validated = float(best["value"])
    else:  # the best weights are damaged, and the last take their place
        records = [record for record in read_metrics(session.run) if record["step"] == steps["best"]]
        validated = next(float(record[goal]) for record in records if goal in record)
    summary = {
        **_common_facts(session),
        "best.step": steps["best"],
        f"val.{session.task.info.metric}": validated,
        **report.summary(results["best"], results["last"]),
    }
    if session.is_main:
        report.write(session.run, results["best"], summary, _rates(session))
        flush_tree(session.run)  # where there is a summary, all that it speaks of is there too
        write_json(session.run / "summary.json", summary)
    session.accelerator.wait_for_everyone()
    tested = {name: value for name, value in summary.items() if name.startswith("test.") and isinstance(value, float)}
    log_to_trackers(session.accelerator, tested, session.progress.step)
    end_trackers(session.accelerator)
    return summary


def _rates(session: Session) -> Rates | None:
    """The schedule that the run followed; None for one that began with another number of epochs."""
    schedule = session.total_samples, session.warmup_samples(session.config.train.epochs), session.config.optim
    seen_key = f"{session.task.info.unit}_seen"
    return rate_curve(*schedule) if has_followed(read_metrics(session.run), seen_key, *schedule) else None


def _common_facts(session: Session) -> dict[str, Any]:
    """The numbers that every run has, whatever its task."""
    info, progress = session.task.info, session.progress
    return {
        "model": info.model_name,
        "dataset": info.dataset,
        "params": count_parameters(session.unwrapped_model),
        "seconds": round(progress.seconds, 2),
        f"{info.unit}_per_second": round(progress.samples_seen / max(progress.seconds, 1e-9), 1),
        "epochs": session.config.train.epochs,
        "steps": progress.step,
        f"{info.unit}_seen": progress.samples_seen,
        "weights": "raw" if session.average is None else "ema",
        "seed": session.config.seed,
        "device": str(session.accelerator.device.type),
        "precision": session.precision,
        "processes": session.accelerator.num_processes,
        "data.fingerprint": info.fingerprint,
        "machine": progress.join_stretches("machine"),
        "commit": progress.join_stretches("commit"),
        "versions": {
            "python": platform.python_version(),
            **package_versions(("vit", "torch", "torchvision", "timm", "accelerate")),
        },
    }
