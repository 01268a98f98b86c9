"""The training loop, to be read from top to bottom. The only room that touches `Accelerator` to train.

    train → for every epoch: _train_epoch → for every step: _train_step → evaluate → checkpoint → finish

Everything a continued run needs is in `Progress` and in the tensors of the session, so a run that was killed and
resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast
from torch import Tensor
from tqdm import tqdm

from vit.config import RunConfig
from vit.data.loading import Step
from vit.runs import append_metrics
from vit.training.checkpoints import save_session, start_run
from vit.training.finish import finish
from vit.training.interruption import NonFinite, Stopped, StopRequest
from vit.training.optim import set_learning_rate
from vit.training.schedule import learning_rate
from vit.training.setup import Session, prepare, set_training_mode
from vit.training.state import Progress

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def train(
    config: RunConfig, run: Path, *, resume: bool = False, origins: dict[str, str] | None = None
) -> dict[str, Any]:
    """Train as configured, evaluate the test set once, fill the run folder, and return its summary.

    `origins` says where each dotted setting came from, for `config.yaml`. Raises ValueError for a setting that cannot
    be honoured, `NonFinite` when the loss is not a number, `Stopped` after a signal; in each case the last good
    checkpoint stands.
    """
    session = prepare(config, run)
    progress = start_run(session, resume, origins or {})
    if session.is_main and progress.step == 0:
        for line in session.task.notes():
            print(line, file=sys.stderr)
    with StopRequest() as stop, _progress_bar(session, progress) as bar:
        while progress.epoch < config.train.epochs:
            _train_epoch(session, progress, stop, bar)
            metrics = _evaluate(session, progress)
            _close_epoch(session, progress, metrics)
            save_session(session, progress)
            _leave_if_asked(session, progress, _agree(session, stop), saved=True)
    return finish(session, progress)


def _train_epoch(session: Session, progress: Progress, stop: StopRequest, bar: Any) -> None:
    set_training_mode(session.model)
    config = session.config.train
    started = time.perf_counter()
    for step in session.task.train_loader.epoch(progress.epoch, start_step=progress.step_in_epoch):
        rate = learning_rate(
            progress.samples_seen,
            session.total_samples,
            session.task.train_loader.samples_per_epoch,
            session.config.optim,
        )
        set_learning_rate(session.optimizers, rate)
        totals = train_step(session, progress, step, stop)
        if session.average is not None:
            session.average.update(session.bare_model, progress.step + 1)
        _count(progress, step, totals, time.perf_counter() - started)
        if progress.step % config.log_every_steps == 0:
            _log_window(session, progress, rate, bar)
        bar.update(1)
        last_of_epoch = progress.step_in_epoch == session.task.train_loader.steps_per_epoch
        due = config.save_every_steps is not None and progress.step % config.save_every_steps == 0
        if due and not last_of_epoch:
            save_session(session, progress)
        if not last_of_epoch:
            _leave_if_asked(session, progress, totals[2:], saved=due)
        started = time.perf_counter()  # what is logged and saved is not training; waiting for images is


def train_step(session: Session, progress: Progress, step: Step, stop: StopRequest) -> Tensor:
    """One optimizer step: the mean loss of all its samples, over micro-batches and processes, whatever their sizes.

    Returns (4,): loss, part predicted correctly (0 where the task counts no hits), and how many processes were asked to
    stop by SIGTERM and by SIGINT, the same on every process. Raises `NonFinite` before the weights change.
    """
    accelerator = session.accelerator
    totals = torch.zeros(4, device=accelerator.device)
    worst: Any = None
    for number, host_batch in enumerate(step.batches):
        batch = host_batch.to(accelerator.device)
        last = number == len(step.batches) - 1
        with contextlib.nullcontext() if last else accelerator.no_sync(session.model):
            losses, hits = session.task.losses(session.model, batch, progress.epoch)
            share = (losses * batch.weights).sum() / step.normalizer
            totals[1] += (hits * batch.weights).sum() / step.normalizer
            del batch  # its samples are not needed any more
            # gradients are averaged over processes, and the loss is a sum over them
            accelerator.backward(share * accelerator.num_processes)
        totals[0] += share.detach()
        worst = worst if worst is not None or torch.isfinite(share.detach()) else host_batch
    totals[2:] = _asked_to_stop(stop, accelerator.device)
    totals = _sum_over_processes(session, totals).cpu()
    norm = _clip(session)
    _check_finite(session, progress, float(totals[0]), norm, worst)
    for optimizer in session.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return totals


def _sum_over_processes(session: Session, totals: Tensor) -> Tensor:
    return totals if session.accelerator.num_processes == 1 else session.accelerator.reduce(totals, "sum")


def _clip(session: Session) -> float:
    """Clip the gradients' joint norm where configured, and return it as it was."""
    limit = session.config.optim.clip_norm
    parameters = [parameter for parameter in session.model.parameters() if parameter.requires_grad]
    return float(session.accelerator.clip_grad_norm_(parameters, math.inf if limit is None else limit))


def _check_finite(session: Session, progress: Progress, loss: float, norm: float, batch: Any) -> None:
    scaled = session.accelerator.scaler is not None  # fp16: the scaler skips the step and lowers its scale
    if math.isfinite(loss) and (scaled or math.isfinite(norm)):
        return
    what = "gradient" if math.isfinite(loss) else "loss"
    where = "" if batch is None else f", {session.task.unit} {_names(session, batch)}"
    raise NonFinite(
        f"the {what} is not finite at step {progress.step + 1} (epoch {progress.epoch + 1}, batch "
        f"{progress.step_in_epoch + 1} of it{where}); the weights were not changed and the last checkpoint stands. "
        "Lower optim.lr, or set train.precision to fp32"
    )


def _names(session: Session, batch: Any, most: int = 4) -> str:
    names = session.task.names(batch.indices[:most].tolist())
    return ", ".join(names) + (", …" if len(batch.indices) > most else "")


def _count(progress: Progress, step: Step, totals: Tensor, seconds: float) -> None:
    progress.step += 1
    progress.step_in_epoch += 1
    progress.samples_seen += step.num_samples
    progress.seconds += seconds
    window = progress.window
    window["loss"] += float(totals[0]) * step.normalizer
    window["hits"] += float(totals[1]) * step.normalizer
    window["normalizer"] += step.normalizer
    window["samples"] += step.num_samples
    window["seconds"] += seconds


def _log_window(session: Session, progress: Progress, rate: float, bar: Any) -> None:
    window, unit = progress.window, session.task.unit
    record = {
        **_counters(session, progress),
        "lr": rate,
        "train.loss": window["loss"] / window["normalizer"],
        f"{unit}_per_second": window["samples"] / max(window["seconds"], 1e-9),
    }
    if session.task.counts_hits:
        record["train.accuracy"] = window["hits"] / window["normalizer"]
    progress.window = Progress().window
    _log(session, record)
    accuracy = f", accuracy {record['train.accuracy']:.1%}" if session.task.counts_hits else ""
    speed = record[f"{unit}_per_second"]
    bar.set_postfix_str(f"loss {record['train.loss']:.3f}{accuracy}, {speed:.0f} {unit}/s")


def _evaluate(session: Session, progress: Progress) -> dict[str, float]:
    """Validation metrics of the raw weights (`val.…`) and, where there is one, of the average (`ema.val.…`)."""
    due = (progress.epoch + 1) % session.config.train.evaluate_every_epochs == 0
    if not due and progress.epoch + 1 < session.config.train.epochs:
        return {}
    _share_statistics(session)
    metrics = {f"val.{name}": value for name, value in _validate(session, progress).items()}
    if session.average is not None:
        with session.average.applied_to(session.bare_model):
            metrics |= {f"ema.val.{name}": value for name, value in _validate(session, progress).items()}
    return metrics


def _share_statistics(session: Session) -> None:
    """BatchNorm's statistics differ between processes; those of the main one are saved, so they are evaluated too."""
    if session.accelerator.num_processes == 1:
        return
    buffers = dict(session.bare_model.named_buffers())
    averaged = {} if session.average is None else session.average.tensors
    for tensor in (*buffers.values(), *(averaged[name] for name in buffers if name in averaged)):
        broadcast(tensor)


def _validate(session: Session, progress: Progress) -> dict[str, float]:
    try:
        return session.task.validate(session.model)
    except NonFinite as error:
        raise NonFinite(
            f"{error} after step {progress.step} (epoch {progress.epoch + 1}); the last checkpoint stands. "
            "Lower optim.lr, or set train.precision to fp32"
        ) from None


def _close_epoch(session: Session, progress: Progress, metrics: dict[str, float]) -> None:
    progress.epoch += 1
    progress.step_in_epoch = 0
    if not metrics:
        return
    goal = session.task.goal
    value = metrics.get(f"ema.val.{goal.metric}", metrics[f"val.{goal.metric}"])
    if progress.best is None or goal.is_beaten_by(value, progress.best["value"]):
        progress.best = {"step": progress.step, "value": value}
    _log(session, {**_counters(session, progress), **metrics})


def _counters(session: Session, progress: Progress) -> dict[str, float]:
    return {
        "step": progress.step,
        "epoch": progress.epoch,
        f"{session.task.unit}_seen": progress.samples_seen,
    }


def _log(session: Session, record: dict[str, float]) -> None:
    if session.is_main:
        append_metrics(session.run, record)
    if session.config.train.tensorboard:
        session.accelerator.log(record, step=int(record["step"]))


def _asked_to_stop(stop: StopRequest, device: torch.device) -> Tensor:
    return torch.tensor([float(stop.signal_number == number) for number in _SIGNALS], device=device)


def _agree(session: Session, stop: StopRequest) -> Tensor:
    """A signal reaches the processes at different moments; they stop at the same step."""
    return _sum_over_processes(session, _asked_to_stop(stop, session.accelerator.device)).cpu()


def _leave_if_asked(session: Session, progress: Progress, asked: Tensor, saved: bool) -> None:
    if not bool(asked.any()):
        return
    if not saved:
        save_session(session, progress)
    raise Stopped(_SIGNALS[int(asked.argmax())], progress.step)


def _progress_bar(session: Session, progress: Progress) -> Any:
    return tqdm(
        total=session.total_steps,
        initial=progress.step,
        desc=session.task.model_name,
        unit="step",
        disable=None if session.is_main else True,
        dynamic_ncols=True,
    )
