"""What `accelerate launch` asked for, and the processes that it leaves to somebody else. Needs no torch."""

from __future__ import annotations

import os
import re
import sys


def start_missing_processes(words: list[str]) -> None:
    """Become torch's launcher of N processes `vit WORDS…` where `accelerate launch --cpu` was asked for N and began 1.

    It leaves the others to `mpirun`, and says of them no more than an address to meet at. Does nothing elsewhere.
    """
    variables = os.environ
    met = any(name in variables for name in ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"))
    if met or "MASTER_ADDR" not in variables or not told_cpu():
        return
    count = _asked_of_launcher()
    if count is None:
        raise ValueError(
            "accelerate: its launcher was asked for several processes on a CPU and started one; say "
            "`accelerate launch --cpu --num_processes N`, or use `torchrun --nproc_per_node N train.py --device cpu`"
        )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    os.execv(sys.executable, [*launcher, "-m", "vit.cli", *words])


def _asked_of_launcher() -> int | None:
    """The number after `--num_processes` in the command of the parent process."""
    import psutil

    words = " ".join(psutil.Process().parent().cmdline())
    found = re.search(r"--num_processes[= ](\d+)", words)
    return int(found[1]) if found else None


def told_cpu() -> bool:
    """Whether the launcher was given `--cpu`."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
