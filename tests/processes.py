"""Several processes on one machine, joined by gloo, without importing torch anew for each.

They are forked from a server that has imported and computed nothing else: a fork of the tests' own process may not use
autograd once that one has started autograd's threads.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import secrets
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch


def in_processes(count: int, work: Callable[..., Any], *arguments: Any, timeout: float = 60) -> list[Any]:
    """What `work(*arguments)` returns in each of `count` processes, by rank; the first failure is raised here."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.tiny", "vit.training.loop", "vit.tasks.classification.report"])
    warm = context.Process(target=int)  # the first one waits for the server's imports, which are no part of the work
    warm.start()
    warm.join()
    port = _free_port()
    receivers, processes = [], []
    for rank in range(count):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(sender, rank, count, port, work, arguments))
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    try:
        answers = [_answer(receiver, timeout) for receiver in receivers]
    finally:
        for process in processes:
            process.join(5)
            if process.is_alive():
                process.kill()
    for answer in answers:
        if isinstance(answer, _Failure):
            raise AssertionError(f"a process failed:\n{answer.trace}")
    return answers


class _Failure:
    def __init__(self, trace: str) -> None:
        self.trace = trace


def _answer(receiver: Connection, timeout: float) -> Any:
    if not receiver.poll(timeout):
        return _Failure(f"no answer within {timeout} s")
    try:
        return torch.load(io.BytesIO(receiver.recv_bytes()), weights_only=False)
    except EOFError:
        return _Failure("it died")


def _child(sender: Connection, rank: int, count: int, port: int, work: Callable[..., Any], arguments: Any) -> None:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    try:
        _send(sender, work(*arguments))
    except BaseException:
        _send(sender, _Failure(traceback.format_exc()))
        raise
    finally:
        sender.close()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _send(sender: Connection, answer: Any) -> None:
    """As bytes: tensors in shared memory would go with the process."""
    content = io.BytesIO()
    torch.save(answer, content)
    sender.send_bytes(content.getvalue())


def _free_port() -> int:
    """A port below those that the system gives away, as to a launcher of another test before this one is used."""
    while True:
        port = secrets.choice(range(12_000, 32_000))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:  # taken
                continue
            return port
