"""Support for `accelerate launch`: its flags, and the processes that it does not start itself. Imports no torch."""

from __future__ import annotations

import os
import re
import sys


def start_missing_processes(words: list[str]) -> None:
    """Replace this process by torch's launcher of `vit WORDS…` if `accelerate launch --cpu` started one of N.

    ValueError where N is not on its command line. Does nothing otherwise.
    """
    variables = os.environ
    met = any(name in variables for name in ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"))
    if met or "MASTER_ADDR" not in variables or not launched_with_cpu_flag():
        return
    import psutil

    # Accelerate leaves the other processes to `mpirun` and tells this one only an address, so N is read from the
    # command of the parent process.
    parent = " ".join(psutil.Process().parent().cmdline())
    count = re.search(r"--num_processes[= ](\d+)", parent)
    if count is None:
        raise ValueError(
            "accelerate: its launcher was asked for several processes on a CPU and started one; say "
            "`accelerate launch --cpu --num_processes N`, or use `torchrun --nproc_per_node N train.py --device cpu`"
        )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", count[1]]
    os.execv(sys.executable, [*launcher, "-m", "vit.cli", *words])


def launched_with_cpu_flag() -> bool:
    """True under `accelerate launch --cpu`."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
