"""A disk that fills while a run writes: one line, exit code 1, and the same bits as ever once there is room again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.faults.recipes import VIT, train_without_figures
from tests.faults.test_kill_moments import in_child
from tests.training.tiny import assert_same_bits
from vit.cli import main
from vit.settings import dump_run_config

SHARES = (0.02, 0.1, 0.25, 0.45, 0.7, 0.9)
"""Room for a run's files, as a share of what they take: the disk fills at the first file, at a later checkpoint, …"""
BLOCK = 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def command(arguments: list[str]) -> None:
    """Run a command in a process of its own, which its exit code ends."""
    sys.stdout, sys.stderr = (os.fdopen(number, "w") for number in (1, 2))  # not pytest's
    Figure.savefig = lambda _, path, **__: Path(path).write_bytes(b"drawn")  # type: ignore[method-assign, assignment]
    code = main(arguments)
    sys.stderr.flush()
    os._exit(code)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_costs_nothing(tmp_path: Path, disk: Path) -> None:
    log, unbroken, settings = tmp_path / "log", tmp_path / "unbroken", tmp_path / "settings.yaml"
    settings.write_text(dump_run_config(VIT, {}))
    assert in_child(partial(train_without_figures, VIT, unbroken), log) == 0, log.read_text()
    needed = size_of(unbroken)
    for share in SHARES:
        run, ballast = disk / "run", disk / "ballast"
        room = max(BLOCK, round(share * needed) // BLOCK * BLOCK)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - room)
        log.write_text("")
        status = in_child(partial(command, ["train", "--config", str(settings), "--output_dir", str(run)]), log)
        said = [line for line in log.read_text().splitlines() if line.startswith("vit: ")]
        assert status == 1, f"{share}: {log.read_text()}"
        assert "Traceback" not in log.read_text()
        assert len(said) == 1
        assert "no space left" in said[0].lower()
        ballast.unlink()
        again = ["--resume"] if (run / "config.yaml").exists() else []
        arguments = ["train", "--config", str(settings), "--output_dir", str(run), *again]
        assert in_child(partial(command, arguments), log) == 0, f"{share}: {log.read_text()}"
        assert_same_bits(unbroken, run)
        shutil.rmtree(run)
