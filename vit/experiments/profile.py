"""`vit profile`: milliseconds a training step by stage, what bounds it, the start, evaluation and a checkpoint.

The steps are those of the training loop; the calls that a stage begins with are watched from outside. The rate is 0, so
that nothing is learnt and no step can go wrong. Nothing is kept of the run but the profile and a chrome trace.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from vit.config import RunConfig
from vit.data.folders import FolderSource
from vit.data.loading import EvalLoader, Step
from vit.data.streaming import CanvasDecoder, canvas_size
from vit.experiments.stopwatch import Stopwatch
from vit.experiments.turns import machine
from vit.runs import write_json
from vit.training.checkpoints import save_session
from vit.training.interruption import StopRequest
from vit.training.loop import train_step
from vit.training.optim import set_learning_rate
from vit.training.setup import Session, prepare, set_training_mode
from vit.training.state import Progress
from vit.training.tasks import classification
from vit.training.tasks.classification import Classification

WAIT, COPY, AUGMENT, FORWARD = "wait for data", "copy to device", "augment", "forward"
BACKWARD, OPTIMIZER, AVERAGE, REST = "backward", "optimizer", "average", "everything else"
LEFT_OUT = "wait for a step that is left out"
STAGES = (WAIT, COPY, AUGMENT, FORWARD, BACKWARD, OPTIMIZER, AVERAGE, REST)
WAITS, IDLES = 0.2, 0.4
_WARM_UP, _TRACED, _DECODED, _EVALUATED = 2, 3, 256, 4
_WATCHED = {"open_training": "open the data", "fingerprint": "fingerprint of the data", "_load_model": "model"}
RULE = (
    f"the loader, where a step waits for data for {WAITS:.0%} of its time; else Python, where for {IDLES:.0%} of the "
    "rest no operator runs (CUDA: no kernel) in the traced steps; else compute"
)
CONVENTIONS = {
    "start_seconds": "from the start of the process to the end of the first step",
    "step_ms": "mean of the timed steps; a stage without those inside it; CUDA's queue is waited for in between; every "
    "batch is augmented alone, where training augments small ones together; compiled: without the smaller last step of "
    "an epoch, for which all is compiled again",
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
    """Of the time outside waiting, in the traced steps."""
    evaluation: dict[str, float]
    checkpoint: dict[str, float]
    verdict: str
    machine: dict[str, Any]

    def text(self) -> str:
        """For the terminal."""
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


def profile_run(config: RunConfig, output: Path, steps: int, imports: float = 0.0) -> Profile:
    """Run `steps` steps as configured and write `profile.json` and `trace.json` (chrome://tracing) into `output`.

    `imports`: seconds that the imports took. ValueError for a setting that training would refuse.
    """
    started = {"interpreter, settings": time.time() - psutil.Process().create_time() - imports, "imports": imports}
    with tempfile.TemporaryDirectory() as folder:
        start = Stopwatch(torch.device("cpu"))
        with _watching_the_start(start), start.stage("device, optimizer, rest"):
            session = prepare(config, Path(folder))
        if session.accelerator.num_processes > 1:
            raise ValueError("accelerate: a profile is of one process; leave out accelerate launch")
        watch = Stopwatch(session.accelerator.device)
        run = _steps(session, watch)
        started |= start.seconds | {"first step": _seconds_of(run, 1)}
        _seconds_of(run, _WARM_UP)
        watch.seconds.clear()
        samples = [next(run) for _ in range(steps)]
        step_ms = {name: 1e3 * watch.seconds.get(name, 0.0) / steps for name in STAGES if name in watch.seconds}
        share = _traced(run, watch, output, session.accelerator.device)
        loading, kept, workers = _loading(session)
        found = Profile(
            model=session.task.model_name,
            dataset=session.task.dataset,
            precision=session.precision,
            samples_per_second=1e3 * statistics.mean(samples) / sum(step_ms.values()),
            unit=session.task.unit,
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
    """What bounds a step, by `RULE`, and what would help."""
    step = sum(step_ms.values())
    waits = step_ms.get(WAIT, 0.0) / step
    if waits >= WAITS:
        text = f"the loader: a step waits for data for {waits:.0%} of its time"
        working = step - step_ms[WAIT]
        if loading_ms and working > 0:
            needed = math.ceil(sum(loading_ms.values()) / working)
            text += f"; decoding alone would keep {needed} workers busy, there are {workers}"
        return text
    if operators_share <= 1 - IDLES:
        return f"Python: operators run for {operators_share:.0%} of the time; larger batches or train.compile help"
    largest = max((name for name in step_ms if name != WAIT), key=lambda name: step_ms[name])
    return f"compute: most of it is {largest} ({step_ms[largest] / step:.0%})"


# ------------------------------------------------------------------ the steps


@contextmanager
def _watching_the_start(watch: Stopwatch) -> Iterator[None]:
    """What a classification does before its first step, each as a stage."""
    own = {name: getattr(classification, name) for name in _WATCHED}
    for name, stage in _WATCHED.items():
        setattr(classification, name, watch.timed(stage, own[name]))
    try:
        yield
    finally:
        for name, call in own.items():
            setattr(classification, name, call)


def _steps(session: Session, watch: Stopwatch) -> Iterator[int]:
    """The training loop's steps, from the last epoch on (its images have grown); gives the samples of each.

    Compiled, those of the first size alone.
    """
    _watch(session, watch)
    set_training_mode(session.model)
    set_learning_rate(session.optimizers, 0.0)
    progress, stop = Progress(), StopRequest()
    size, waited = 0, 0.0
    for epoch in itertools.count(session.config.train.epochs - 1):
        progress.epoch = epoch
        for step in watch.timed_iterator(WAIT, session.task.train_loader.epoch(epoch)):
            if step.num_samples < size:
                watch.seconds[LEFT_OUT] += watch.seconds[WAIT] - waited
                watch.seconds[WAIT] = waited
                continue
            size = step.num_samples if session.config.train.compile else 0
            with watch.stage(REST):
                train_step(session, progress, _watched(step, watch), stop)
                progress.step += 1
                if session.average is not None:
                    session.average.update(session.bare_model, progress.step)
            yield step.num_samples
            waited = watch.seconds.get(WAIT, 0.0)


def _watch(session: Session, watch: Stopwatch) -> None:
    task: Any = session.task
    accelerator: Any = session.accelerator
    if isinstance(task, Classification):
        loader: Any = task.train_loader
        augment: Any = watch.timed(AUGMENT, loader.augment)
        augment.image_size = loader.augment.image_size
        loader.augment, loader.most_images = augment, 1
    task.losses = watch.timed(FORWARD, task.losses)
    accelerator.backward = watch.timed(BACKWARD, accelerator.backward)
    accelerator.clip_grad_norm_ = watch.timed(OPTIMIZER, accelerator.clip_grad_norm_)
    for optimizer in session.optimizers:
        optimizer.step = watch.timed(OPTIMIZER, optimizer.step)  # type: ignore[method-assign]
        optimizer.zero_grad = watch.timed(OPTIMIZER, optimizer.zero_grad)  # type: ignore[method-assign]
    if session.average is not None:
        session.average.update = watch.timed(AVERAGE, session.average.update)  # type: ignore[method-assign]


class _Watched:
    """A batch whose way to the device is a stage."""

    def __init__(self, batch: Any, watch: Stopwatch) -> None:
        self._batch, self._watch = batch, watch

    def to(self, device: torch.device) -> Any:
        with self._watch.stage(COPY):
            return self._batch.to(device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


def _watched(step: Step, watch: Stopwatch) -> Step:
    return replace(step, batches=[_Watched(batch, watch) for batch in step.batches])


def _seconds_of(run: Iterator[int], steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        next(run)
    return time.perf_counter() - started


def _traced(run: Iterator[int], watch: Stopwatch, output: Path, device: torch.device) -> float:
    """Write the trace of a few steps; the part of their time outside waiting in which operators (kernels) run."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    before = _waited(watch)
    with profile(activities=activities) as traced:
        elapsed = _seconds_of(run, _TRACED)
    output.mkdir(parents=True, exist_ok=True)
    traced.export_chrome_trace(str(output / "trace.json"))
    busy = _busy_seconds(traced.events(), DeviceType.CUDA if on_cuda else DeviceType.CPU)
    return min(1.0, busy / (elapsed - (_waited(watch) - before)))


def _waited(watch: Stopwatch) -> float:
    return sum(watch.seconds.get(name, 0.0) for name in (WAIT, LEFT_OUT))


def _busy_seconds(events: Iterable[Any], device: DeviceType) -> float:
    """In which the device computed outside waits for data. Each kernel is an event of its own, and a part of the
    operator's that started it: on CUDA only the first counts.
    """
    events = list(events)
    waits = [event.time_range for event in events if event.name == WAIT]
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
    if not isinstance(task, Classification):
        return {}, True, None
    split, data = task.train_split, task.config.data
    spread = torch.linspace(0, len(split) - 1, min(_DECODED, len(split))).to(torch.int64)
    indices = split.indices[spread].tolist()
    decoder = CanvasDecoder(split.source, canvas_size(split, data, task.preprocessing.image_size), data.interpolation)
    decoder[indices]
    started = time.perf_counter()
    decoder[indices]
    together = time.perf_counter() - started
    reading = 0.0
    if isinstance(split.source, FolderSource):
        started = time.perf_counter()
        for index in indices:
            (split.source.root / split.source.files[index]).read_bytes()
        reading = time.perf_counter() - started
    each = 1e3 * data.batch_size / len(indices)
    return {"read": each * reading, "decode": each * (together - reading)}, task.loader.is_kept, data.workers


def _evaluation(session: Session) -> dict[str, float]:
    """Of the validation set, or of a part of a large one."""
    task = session.task
    seen = {}
    if isinstance(task, Classification):
        split = replace(task.val_split, indices=task.val_split.indices[: _EVALUATED * task.config.data.eval_batch_size])
        task.val_loader = EvalLoader(split, task.preprocessing, task.config.data)
        seen = {"images": float(len(split)), "of_images": float(len(task.val_split))}
    started = time.perf_counter()
    task.validate(session.model)
    return {"seconds": time.perf_counter() - started, **seen}


def _checkpoint(session: Session) -> dict[str, float]:
    session.run.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    written = save_session(session, Progress(step=1))
    elapsed = time.perf_counter() - started
    assert written is not None, "a profile has one process"
    size = sum(file.stat().st_size for file in written.rglob("*") if file.is_file())
    return {"seconds": elapsed, "mib": size / 2**20}
