"""A worker that dies is named in one line, with how it ended, the image it was decoding, and how to continue."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.resource_sharer import DupFd
from pathlib import Path
from typing import Any

import pytest

from tests.training.tiny import assert_same_bits, tiny
from vit.cli import main
from vit.data.sources import FakeSource
from vit.data.workers import Workers
from vit.settings import dump_run_config
from vit.training.loop import train

CONFIG = tiny(data={"fake_images": 60, "cache_gib": 0.0, "workers": 2})

ENDS = {
    "was killed (SIGKILL; perhaps the machine was out of memory)": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crashed (segmentation fault)": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "ended with exit code 3": lambda: os._exit(3),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.usefixtures("no_figures")
def test_a_dead_worker_is_one_line(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, run, parent, read = tmp_path / "recipe.yaml", tmp_path / "run", os.getpid(), FakeSource.read
    recipe.write_text(dump_run_config(CONFIG, {}))

    def deadly(self: FakeSource, index: int, **options: Any) -> Any:
        if os.getpid() != parent and self.part == "train" and index == 33:
            ENDS[how]()
            time.sleep(5)
        return read(self, index, **options)

    with monkeypatch.context() as patch:
        patch.setattr(FakeSource, "read", deadly)
        assert main(["train", "--config", str(recipe), "--output_dir", str(run)]) == 1
    printed = capfd.readouterr().err.replace("\0", "")  # which torch adds to its own line in the worker
    assert "Traceback" not in printed
    lines = [line for line in printed.splitlines() if line.startswith("vit:")]
    assert len(lines) == 1
    assert f"{how} while it decoded fake/train/33; the last checkpoint stands; continue with --resume {run}" in lines[0]
    train(CONFIG, run, resume=True)
    train(CONFIG, tmp_path / "unbroken")
    assert_same_bits(tmp_path / "unbroken", run)


def _share(begin: Callable[[int], None], parent: Connection) -> None:
    begin(0)
    parent.send(DupFd(os.pipe()[0]))
    parent.recv()


def test_a_worker_is_silent_about_a_connection_that_its_parent_broke_off(capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = get_context("spawn").Pipe()
    workers = Workers(1, str, ours.close)
    worker = get_context("spawn").Process(target=_share, args=(workers.begin, theirs))
    worker.start()
    shared = ours.recv()
    with socket.socket(socket.AF_UNIX) as broken:
        broken.connect(shared._id[0])
    os.close(shared.detach())  # served after the broken one, so that one is over
    ours.send(None)
    worker.join()
    assert capfd.readouterr().err == ""
