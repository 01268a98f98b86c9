"""Functions called in processes of their own, several at once, each with its share of the threads.

The many small operations of a small model leave cores idle: on two cores, two processes of one thread each train
1.27 times as many images of a ViT of width 128 as one process with both (LOG.md, 2026-11-27).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from vit.config import check
from vit.launcher import end_with_parent
from vit.tasks.task import NonFinite
from vit.training.interruption import Stopped, StopSignals

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "NonFinite": NonFinite}
"""Those whose message is all that a user needs."""
_CONTEXT: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
"""Processes begin with their own imports, as one that is forked from a process that computes may hang."""
_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a process that has obeyed: before its job had begun, and after the job was saved."""
_REMEDY = "the same command continues"
_POLL = 0.2
"""Seconds after which a signal is noticed."""


Key = TypeVar("Key")


@dataclass(frozen=True)
class Job:
    title: str
    """For lines about it."""
    function: Callable[..., Any]
    """One of a module, which the process imports."""
    arguments: tuple[Any, ...]
    log: Path
    """The file that what it prints is added to."""


@dataclass(frozen=True)
class _Running(Generic[Key]):
    key: Key
    job: Job
    process: BaseProcess
    answer: Connection


def run_jobs(
    jobs: Mapping[Key, Job],
    at_once: int,
    begun: Callable[[Key], None] = lambda _: None,
    ended: Callable[[Key, Any], None] = lambda _key, _result: None,
) -> None:
    """Call all of them, begun in their order; `begun` and `ended` are told a job's key, `ended` its result too.

    `Stopped` after a signal, which every process gets as SIGTERM. When a job fails the others get that too, and then
    its ValueError or `NonFinite` is raised; ChildProcessError after another failure, which the log tells of.
    """
    waiting, running = deque(jobs.items()), list[_Running[Key]]()
    threads = max(1, torch.get_num_threads() // at_once)  # the last one's too, as it may have been timed so
    resource_tracker.ensure_running()  # its own start, within that of the first process, would let signals through
    with StopSignals() as signals:
        try:
            while (waiting or running) and not signals.signal_number:
                while waiting and len(running) < at_once and not signals.signal_number:
                    key, job = waiting.popleft()
                    begun(key)
                    running.append(_begin(key, job, threads))
                for connection in wait([each.answer for each in running], _POLL):
                    (one,) = (each for each in running if each.answer is connection)
                    running.remove(one)
                    ended(one.key, _result(one))
        finally:  # after a signal, and when one of them has failed
            for each in running:
                each.process.terminate()
                each.answer.close()  # nobody reads it any more, and who sends must not wait for that
            for each in running:
                each.process.join()
        for each in running:
            if each.process.exitcode not in (0, *_STOPPED):
                raise ChildProcessError(f"{_end(each)} while it was stopped; {_where(each.job)}")
        if signals.signal_number:
            raise Stopped(signals.signal_number, remedy=_REMEDY)


def check_at_once(at_once: int, option: str = "--at_once") -> None:
    """ValueError for a number below 1, and for more than one run at once under a launcher of several processes."""
    check(at_once >= 1, option, at_once, "it must be at least 1")
    alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    check(at_once == 1 or alone, option, at_once, "a launcher already joins several processes in one run")


def _begin(key: Key, job: Job, threads: int) -> _Running[Key]:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.log.touch()
    receiver, sender = multiprocessing.Pipe(duplex=False)
    arguments = sender, job, threads
    process = _CONTEXT.Process(target=_call, args=arguments, name=job.title)
    with _held_back():  # the process inherits that, so that no Ctrl-C meets it while it imports
        process.start()
    sender.close()
    return _Running(key, job, process, receiver)


@contextmanager
def _held_back() -> Iterator[None]:
    """Signals wait until the end of the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _call(sender: Connection, job: Job, threads: int) -> None:
    """Call a job's function and send what it returns. It runs in the job's process."""
    os.setsid()  # a Ctrl-C in the terminal reaches the parent alone
    end_with_parent()
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():  # it ended before this process could ask to be told
        os._exit(1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    with job.log.open("a") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    torch.set_num_threads(threads)
    try:
        _send(sender, "", job.function(*job.arguments))
    except Stopped as stopped:
        sys.exit(stopped.exit_code)
    except (ValueError, NonFinite) as error:  # others leave a traceback in the log
        _send(sender, "NonFinite" if isinstance(error, NonFinite) else "ValueError", str(error))


def _send(sender: Connection, kind: str, answer: Any) -> None:
    with suppress(BrokenPipeError):  # the parent is stopping all of them
        sender.send((kind, answer))


def _result(ended: _Running[Key]) -> Any:
    """Return what the function of a job has returned; errors as in `run_jobs`."""
    try:
        kind, answer = ended.answer.recv()
    except EOFError:
        kind, answer = None, None
    ended.process.join()
    if kind is None:
        code = ended.process.exitcode or 0
        number = code - 128 if code > 0 else -code
        if number in _SIGNALS:  # somebody has stopped this one of them
            raise Stopped(number, remedy=_REMEDY)
        raise ChildProcessError(f"{_end(ended)}; {_where(ended.job)}")
    if kind:
        raise _ERRORS[kind](f"{ended.job.title}: {answer}")
    return answer


def _end(ended: _Running[Key]) -> str:
    killed_by = -(ended.process.exitcode or 0)
    named = killed_by in {each.value for each in signal.Signals}
    how = f"was killed by {signal.Signals(killed_by).name}" if named else "failed"
    return f"{ended.job.title}: its process {how}"


def _where(job: Job) -> str:
    return f"the end of {job.log} may say why"
