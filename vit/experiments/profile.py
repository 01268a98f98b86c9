"""`vit profile`: milliseconds a training step by stage, what bounds it, the start, evaluation and a checkpoint.

The steps are those of the training loop, timed by a `Stopwatch`. The rate is 0, so that nothing is learned and no step
can go wrong. Only the profile and a chrome trace are kept of the run.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from vit.config import RunConfig
from vit.data.file_source import FileSource
from vit.data.streaming import CanvasDecoder
from vit.engine import check_one_process
from vit.processor import machine
from vit.runs import write_json
from vit.stopwatch import Stopwatch
from vit.tasks.images import ImageTask
from vit.training.checkpoints import save_session
from vit.training.loop import steps
from vit.training.optim import parameter_groups
from vit.training.session import Session, open_session

READ, AUGMENT, FORWARD, BACKWARD = "read", "augment", "forward", "backward"
REDUCE, UPDATE, AVERAGE, REST = "reduce", "update", "average", "everything else"
STAGES = (READ, AUGMENT, FORWARD, BACKWARD, REDUCE, UPDATE, AVERAGE, REST)
WAITS, IDLES = 0.2, 0.4
_WARM_UP, _TRACED, _DECODED, _EVALUATED = 2, 3, 256, 4
RULE = (
    f"the loader, where a step waits for data for {WAITS:.0%} of its time; else Python, where for {IDLES:.0%} of the "
    "rest no operator runs (CUDA: no kernel) in the traced steps; else compute"
)
CONVENTIONS = {
    "start_seconds": "from the start of the process to the end of the first step",
    "step_ms": "mean of the timed steps; a stage without those inside it; CUDA's queue is waited for in between; "
    "read: waiting for samples; augment: with the copy to the device, and every batch alone, where training augments "
    "small ones together; reduce: the norm of the gradients, the loss over processes; compiled: without the smaller "
    "last step of an epoch, for which all is compiled again",
    "loading_ms": "one process's work for a batch of the images decoded for this, their files in the system's cache",
    "evaluation": "first pass, decoding and compiling included",
    "verdict": RULE,
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The numbers of a run's first steps."""

    model: str
    dataset: str
    precision: str
    samples_per_second: float
    unit: str
    start_seconds: dict[str, float]
    step_ms: dict[str, float]
    loading_ms: dict[str, float]
    """Read and decode; empty where the samples are not images of files."""
    kept: bool
    """Whether decoding happens once, before the first step, and not in every epoch."""
    workers: int | None
    operators_share: float
    """Part of the time outside waiting, in the traced steps."""
    evaluation: dict[str, float]
    checkpoint: dict[str, float]
    verdict: str
    machine: dict[str, Any]

    def text(self) -> str:
        """The profile as lines for the terminal."""
        step = sum(self.step_ms.values())
        lines = [
            f"{self.model} on {self.dataset}, {self.precision}: {self.samples_per_second:.0f} {self.unit}/s",
            "",
            "a step:",
        ]
        lines += [f"  {name:24} {value:9.2f} ms  {value / step:4.0%}" for name, value in self.step_ms.items()]
        lines.append(f"  {'together':24} {step:9.2f} ms")
        if self.loading_ms:
            when = "once, before the first step" if self.kept else f"by {self.workers or 'no'} workers"
            lines += ["", f"a batch's decoding, {when}:"]
            lines += [f"  {name:24} {value:9.2f} ms" for name, value in self.loading_ms.items()]
        lines += ["", f"start, {sum(self.start_seconds.values()):.2f} s:"]
        lines += [f"  {name:24} {value:9.2f} s" for name, value in self.start_seconds.items()]
        seen, size = self.evaluation, self.checkpoint["mib"]
        part = f", {seen['images']:.0f} of {seen['of_images']:.0f} images" if "images" in seen else ""
        lines += ["", f"evaluation: {seen['seconds']:.2f} s{part}"]
        lines += [f"checkpoint: {self.checkpoint['seconds']:.2f} s, {size:.1f} MiB", "", f"bound by {self.verdict}"]
        return "\n".join(lines)


def profile_run(config: RunConfig, output: Path, num_steps: int, imports: float = 0.0) -> Profile:
    """Take `num_steps` steps as configured and write `profile.json` and `trace.json` (chrome://tracing) into `output`.

    `imports`: seconds that the imports took. ValueError for a setting that training would refuse.
    """
    started = {"interpreter, settings": time.time() - psutil.Process().create_time() - imports, "imports": imports}
    with tempfile.TemporaryDirectory() as folder:
        start = Stopwatch(torch.device("cpu"))
        with start("device, optimizer, rest"):
            session = open_session(config, Path(folder), timer=start)
        check_one_process(session.accelerator, "profile", "steps are timed")
        watch = Stopwatch(session.accelerator.device)
        run = _steps(session, watch)
        started |= start.seconds | {"first step": _seconds_of(run, 1)}
        _seconds_of(run, _WARM_UP)
        watch.seconds.clear()
        samples = [next(run) for _ in range(num_steps)]
        step_ms = {name: 1e3 * watch.seconds[name] / num_steps for name in STAGES if name in watch.seconds}
        share = _traced(run, watch, output, session.accelerator.device)
        loading, kept, workers = _loading(session)
        found = Profile(
            model=session.task.info.model_name,
            dataset=session.task.info.dataset,
            precision=session.precision,
            samples_per_second=1e3 * statistics.mean(samples) / sum(step_ms.values()),
            unit=session.task.info.unit,
            start_seconds=started,
            step_ms=step_ms,
            loading_ms=loading,
            kept=kept,
            workers=workers,
            operators_share=share,
            evaluation=_evaluation(session),
            checkpoint=_checkpoint(session),
            verdict=verdict(step_ms, share, loading if not kept else {}, workers),
            machine=machine(session.accelerator.device.type),
        )
    write_json(output / "profile.json", {**asdict(found), "conventions": CONVENTIONS})
    return found


def verdict(
    step_ms: dict[str, float], operators_share: float, loading_ms: dict[str, float], workers: int | None
) -> str:
    """The bound of a step's speed, by `RULE`, and what would help."""
    step = sum(step_ms.values())
    waits = step_ms.get(READ, 0.0) / step
    if waits >= WAITS:
        text = f"the loader: a step waits for data for {waits:.0%} of its time"
        working = step - step_ms[READ]
        if loading_ms and working > 0:
            needed = math.ceil(sum(loading_ms.values()) / working)
            text += f"; decoding alone would keep {needed} workers busy, there are {workers}"
        return text
    if operators_share <= 1 - IDLES:
        return f"Python: operators run for {operators_share:.0%} of the time; larger batches or train.compile help"
    largest = max((name for name in step_ms if name != READ), key=lambda name: step_ms[name])
    return f"compute: most of it is {largest} ({step_ms[largest] / step:.0%})"


# ------------------------------------------------------------------ the steps


def _steps(session: Session, watch: Stopwatch) -> Iterator[int]:
    """Take the training loop's steps, from the last epoch on (its images have grown); gives the samples of each.

    Compiled, those of the first size alone.
    """
    for group in parameter_groups(session.optimizers):
        group["lr_scale"] = 0.0
    if isinstance(session.task, ImageTask):
        session.task.train_loader.max_images_together = 1
    progress, loader = session.progress, session.task.train_loader
    for epoch in itertools.count(session.config.train.epochs - 1):
        progress.epoch, progress.step_in_epoch = epoch, 0
        epoch_steps = steps(session, watch)
        while True:
            with watch(REST):
                step = next(epoch_steps, None)
            if step is None:
                break
            yield step.num_samples
            if session.config.train.compile and progress.step_in_epoch == loader.samples_per_epoch // step.num_samples:
                break


def _seconds_of(run: Iterator[int], steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        next(run)
    return time.perf_counter() - started


def _traced(run: Iterator[int], watch: Stopwatch, output: Path, device: torch.device) -> float:
    """Write the trace of a few steps; the part of their time outside waiting in which operators (kernels) run."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    before = watch.seconds[READ]
    with profile(activities=activities) as traced:
        elapsed = _seconds_of(run, _TRACED)
    output.mkdir(parents=True, exist_ok=True)
    traced.export_chrome_trace(str(output / "trace.json"))
    busy = _busy_seconds(traced.events(), DeviceType.CUDA if on_cuda else DeviceType.CPU)
    return min(1.0, busy / (elapsed - (watch.seconds[READ] - before)))


def _busy_seconds(events: Iterable[Any], device: DeviceType) -> float:
    """Seconds of computation outside waits for data. Each kernel is an event of its own, and a part of the
    operator's that started it: on CUDA only the first counts.
    """
    events = list(events)
    waits = [event.time_range for event in events if event.name == READ]
    work = [
        event
        for event in events
        if event.device_type == device
        and not event.is_user_annotation
        and event.name not in STAGES
        and not any(wait.start <= event.time_range.start < wait.end for wait in waits)
    ]
    on_cuda = device == DeviceType.CUDA
    return sum(event.self_device_time_total if on_cuda else event.self_cpu_time_total for event in work) / 1e6


# ------------------------------------------------------------------ beside the steps


def _loading(session: Session) -> tuple[dict[str, float], bool, int | None]:
    """Milliseconds of reading and of decoding a batch of image files, whether it happens once, and the workers."""
    task = session.task
    if not isinstance(task, ImageTask):
        return {}, True, None
    split, data = task.train_split, task.config.data
    spread = torch.linspace(0, len(split) - 1, min(_DECODED, len(split))).to(torch.int64)
    indices = split.indices[spread].tolist()
    canvas = task.train_loader.loader.canvas_size
    decoder = CanvasDecoder(split.source, canvas, data.interpolation, antialias=data.antialias)
    decoder[indices]  # so that the files are in the system's cache
    together = _shortest(lambda: decoder[indices])
    reading = 0.0
    if isinstance(split.source, FileSource):
        paths = [split.source.root / split.source.files[index] for index in indices]
        reading = min(together, _shortest(lambda: [path.read_bytes() for path in paths]))
    each = 1e3 * data.batch_size / len(indices)
    return (
        {"read": each * reading, "decode": each * (together - reading)},
        task.train_loader.loader.is_cached,
        data.workers,
    )


def _shortest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of three turns: what else the machine does can only add to them."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _evaluation(session: Session) -> dict[str, float]:
    """Seconds of validation, on a part of a large set."""
    task = session.task
    seen = {}
    if isinstance(task, ImageTask):
        split = replace(task.val_split, indices=task.val_split.indices[: _EVALUATED * task.config.data.eval_batch_size])
        task.validate_on(split)
        seen = {"images": float(len(split)), "of_images": float(len(task.val_split))}
    started = time.perf_counter()
    task.validate(session.model)
    return {"seconds": time.perf_counter() - started, **seen}


def _checkpoint(session: Session) -> dict[str, float]:
    session.run.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    written = save_session(session)
    elapsed = time.perf_counter() - started
    assert written is not None, "a profile has one process"
    size = sum(file.stat().st_size for file in written.rglob("*") if file.is_file())
    return {"seconds": elapsed, "mib": size / 2**20}
