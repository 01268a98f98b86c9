"""The training loop, to be read from top to bottom.

`train` runs epochs of `steps`, then validation and a checkpoint, and in the end evaluates the model on the test set. An
optimizer step (`steps`) has seven stages: read; augment, forward and backward for each micro-batch; reduce, update and
average.

Everything a resumed run needs is in the session's `progress` and tensors, so a run that was killed and resumed is
bit-identical to one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from vit.config import RunConfig
from vit.data.loading import Step
from vit.data.workers import dead_workers_named
from vit.stopwatch import Timer, untimed
from vit.tasks.task import NonFinite
from vit.terminal import terminal_outlived
from vit.training.allowed_changes import as_begun
from vit.training.checkpoints import save_session
from vit.training.display import Display, displayed
from vit.training.finish import finish_run
from vit.training.interruption import Stopped, stops_at_once
from vit.training.optim import set_learning_rate
from vit.training.progress import StepResult as StepResult
from vit.training.ranks import ranks_watched
from vit.training.records import log_steps
from vit.training.schedule import learning_rate
from vit.training.session import Session, open_session, set_training_mode
from vit.training.starting import broken_images_unlisted, folder_locked, start_run
from vit.training.trackers import trackers_ended
from vit.training.validation import validate
from vit.versions import checkout_commit

LEAST_SCALE = 2.0**-8
"""Scale of fp16's losses, which begins at 2¹⁶, below which it cannot be why a gradient overflows."""


def train(
    config: RunConfig, run: Path, *, resume: bool = False, origins: dict[str, str] | None = None
) -> dict[str, Any]:
    """Train as configured, evaluate on the test set once, write the results into the run folder and return the summary.

    `origins` says where each setting (as `optim.lr`) came from, for `config.yaml`. Raises ValueError for a setting that
    cannot be honoured, `NonFinite` when the loss is not a number, `Stopped` after a signal, when a checkpoint has been
    saved; the last good checkpoint is kept in each case.
    """
    checkout_commit()  # remembered: what is committed while the session opens is not what runs
    session = open_session(as_begun(config, run) if resume else config, run)
    remedy = f"the last checkpoint stands; {session.how_to_continue}"
    with (
        terminal_outlived(),
        ranks_watched(session.accelerator, remedy),
        folder_locked(session),
        trackers_ended(session.accelerator),
    ):
        if finished := start_run(session, resume, origins or {}):
            return finished
        with (
            session.stop_signals,
            dead_workers_named(remedy),
            broken_images_unlisted(session),
            displayed(session, origins or {}) as display,
        ):
            while session.progress.epoch < config.train.epochs:
                _train_epoch(session, display)
        with stops_at_once("during the final evaluation", remedy):
            return finish_run(session)


def _train_epoch(session: Session, display: Display) -> None:
    """Take the remaining steps of the current epoch, validate and save; `Stopped` after a signal."""
    progress, settings = session.progress, session.config.train
    for step in steps(session):  # which counts them in `progress`
        is_last = progress.step_in_epoch == session.task.train_loader.steps_per_epoch
        off_grid = progress.step % settings.log_every_steps
        # an epoch without a step on the grid has a line at its end
        if off_grid == 0 or (is_last and off_grid >= progress.step_in_epoch):
            display.show(log_steps(session, step.rate))
        display.step(step)
        if is_last and not step.stop_signal:
            continue  # the last step of the epoch is saved after its validation below
        save_every = settings.save_every_steps
        if step.stop_signal or (save_every is not None and progress.step % save_every == 0):
            save_session(session)
        if step.stop_signal:
            raise Stopped(step.stop_signal, progress.step, session.how_to_continue)
    progress.epoch += 1
    progress.step_in_epoch = 0
    validated = progress.epoch % settings.evaluate_every_epochs == 0 or progress.epoch == settings.epochs
    metrics = validate(session) if validated else {}
    on_grid = settings.save_every_steps is not None and progress.step % settings.save_every_steps == 0
    saved = validated or on_grid or progress.epoch % settings.save_every_epochs == 0
    if saved:
        save_session(session)
    display.epoch(metrics)
    if stop_signal := session.agreed_stop_signal():  # asked here: one may come while the session is saved
        if not saved:
            save_session(session)
        raise Stopped(stop_signal, progress.step, session.how_to_continue)


def steps(session: Session, timer: Timer = untimed) -> Iterator[StepResult]:
    """Take the remaining optimizer steps of the current epoch; `session.progress` says where it is, and is updated.

    A step's loss is the mean over its images (its target tokens, for text) in all micro-batches and processes: a
    weighted sum divided by the step's `normalizer`. Each stage runs within `timer(NAME)`. Raises `NonFinite` before the
    weights change.
    """
    accelerator, task, model, progress = session.accelerator, session.task, session.model, session.progress
    loader, device, optim = task.train_loader, accelerator.device, session.config.optim
    warmup = session.warmup_samples(session.config.train.epochs)
    planned_steps = loader.epoch(progress.epoch, start_step=progress.step_in_epoch)
    set_training_mode(model)
    trainable = list[nn.Parameter]()
    while True:
        started = time.perf_counter()  # includes waiting for data, excludes the caller's logging and saving
        with timer("read"):
            step = next(planned_steps, None)
        if step is None:
            return
        rate = learning_rate(progress.samples_seen, session.total_samples, warmup, optim)
        set_learning_rate(session.optimizers, rate)
        totals = torch.zeros(2, device=device)  # loss and accuracy
        losses = []  # of each micro-batch, for the message about one that is not finite
        for number, micro_batch in enumerate(step.batches, start=1):
            with timer("augment"):
                batch = task.prepare(micro_batch, device)
            # processes exchange their gradients only in the last backward pass of a step
            with nullcontext() if number == len(step.batches) else accelerator.no_sync(model):
                with timer("forward"):
                    sample_losses, hits = task.losses(model, batch, progress.epoch)
                    loss = (sample_losses * batch.weights).sum() / step.normalizer
                    accuracy = (hits * batch.weights).sum() / step.normalizer
                del batch  # its memory is free for the backward pass
                with timer("backward"):  # processes average their gradients; the factor makes a sum of it
                    accelerator.backward(loss * accelerator.num_processes)
            losses.append(loss.detach())
            totals += torch.stack([losses[-1], accuracy])
        with timer("reduce"):  # the norm, what is logged, whether to stop; the backward pass exchanged gradients
            # after a backward pass: FSDP may hold whole parameters, without gradients, before the first
            trainable = trainable or [parameter for parameter in model.parameters() if parameter.requires_grad]
            largest = math.inf if optim.clip_norm is None else optim.clip_norm  # inf: only to know the norm
            norm = accelerator.clip_grad_norm_(trainable, largest)  # before the device is waited for, once a step
            step_loss, step_accuracy = accelerator.reduce(totals, "sum").tolist()
            stop_signal = session.agreed_stop_signal()
        with timer("update"):
            _check_finite(session, step, losses, step_loss, float(norm))
            for optimizer in session.optimizers:
                optimizer.step()
                optimizer.zero_grad()
        if session.average is not None:
            with timer("average"):
                session.average.update(session.unwrapped_model, progress.step + 1)
        progress.count(step, step_loss, step_accuracy, time.perf_counter() - started)
        yield StepResult(step.num_samples, step_loss, step.normalizer, rate, stop_signal)


def _check_finite(session: Session, step: Step, losses: list[Tensor], loss: float, norm: float) -> None:
    """Raise `NonFinite` in every process, naming samples of the first micro-batch whose loss is not finite.

    A gradient that is not finite is no error with fp16's loss scaler, which skips the step and halves its scale, unless
    there is nothing left to halve.
    """
    scaler = session.accelerator.scaler
    if math.isfinite(loss) and (math.isfinite(norm) or (scaler is not None and scaler.get_scale() >= LEAST_SCALE)):
        return
    progress = session.progress
    where = next(filter(None, gather_object([_where_not_finite(session, step, losses)])), "")
    raise NonFinite(
        f"the {'gradient' if math.isfinite(loss) else 'loss'} is not finite at step {progress.step + 1} (epoch "
        f"{progress.epoch + 1}, batch {progress.step_in_epoch + 1} of it{where}); the weights were not changed and the "
        f"last checkpoint stands. {session.remedy}"
    )


def _where_not_finite(session: Session, step: Step, losses: list[Tensor]) -> str:
    """Samples of this process's first micro-batch whose loss is not finite; empty if all are."""
    task = session.task
    for micro_batch, micro_loss in zip(step.batches, losses, strict=True):
        if not torch.isfinite(micro_loss):
            names = ", ".join(map(task.sample_name, micro_batch.indices[:4].tolist()))
            return f", {task.info.unit} {names}{', …' if len(micro_batch.indices) > 4 else ''}"
    return ""
