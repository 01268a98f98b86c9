"""Where the work runs: device, precision, processes. Builds the one `Accelerator` and refuses what it would replace.

On a CPU Accelerate quietly turns FSDP into DDP, and fp16 into fp32. Here both are errors: a run that says fp16 is fp16.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from torch import Tensor


def make_accelerator(device: str = "auto", precision: str = "auto", **options: Any) -> Accelerator:
    """The Accelerator for `device` (auto, cpu, cuda, mps) and `precision` (auto, fp32, bf16, fp16).

    ValueError when the device is not there, cannot compute in that precision, or the launcher asked for something else.
    """
    _check_device(device)
    if "WORLD_SIZE" not in os.environ:  # one process: a second run in it may ask for another precision
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
    if _told_cpu() and device not in ("auto", "cpu"):
        raise ValueError(f"device: {device!r} contradicts the launcher's --cpu; give one of them")
    kind = "cpu" if _told_cpu() or device == "cpu" else _best_device()
    chosen = choose_precision(kind, precision)
    accelerator = Accelerator(cpu=kind == "cpu", mixed_precision={"fp32": "no"}.get(chosen, chosen), **options)
    _check_distribution(accelerator)
    return accelerator


def choose_precision(kind: str, precision: str) -> str:
    """`auto` is bf16 where the device computes it faster than fp32. The launcher's `--mixed_precision` counts too."""
    asked = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if asked not in ("no", "fp32"):
        if precision not in ("auto", asked):
            raise ValueError(
                f"train.precision: {precision!r} contradicts the launcher's --mixed_precision {asked}; give one of them"
            )
        precision = asked
    if precision == "fp16" and kind == "cpu":
        raise ValueError("train.precision: 'fp16' is not computed on a CPU; use 'bf16', 'fp32' or 'auto'")
    return ("bf16" if has_fast_bf16(kind) else "fp32") if precision == "auto" else precision


def has_fast_bf16(kind: str) -> bool:
    """Whether the device has bfloat16 matrix instructions (elsewhere bfloat16 is emulated and slower than float32)."""
    if kind == "cuda":
        return torch.cuda.get_device_capability()[0] >= 8
    if kind == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def gather_uneven(accelerator: Accelerator, values: Tensor) -> Tensor:
    """Concatenate over processes along the first axis, where each process may hold another number of rows."""
    if accelerator.num_processes == 1:
        return values
    sizes = accelerator.gather(torch.tensor([len(values)], device=values.device)).tolist()
    padded = values.new_zeros((max(sizes), *values.shape[1:]))
    padded[: len(values)] = values
    rows = accelerator.gather(padded).reshape(len(sizes), max(sizes), *values.shape[1:])
    return torch.cat([block[:size] for block, size in zip(rows, sizes, strict=True)])


def start_missing_processes(words: list[str]) -> None:
    """Become torch's launcher of N processes `vit WORDS…` where `accelerate launch --cpu` was asked for N and began 1.

    It leaves the others to `mpirun`, and says of them no more than an address to meet at. Does nothing elsewhere.
    """
    variables = os.environ
    met = any(name in variables for name in ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"))
    if met or "MASTER_ADDR" not in variables or not _told_cpu():
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


def _told_cpu() -> bool:
    """Whether the launcher was given `--cpu`."""
    return os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")


def _check_device(device: str) -> None:
    present = {
        "auto": True,
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if device not in present:
        raise ValueError(f"device: {device!r} is not valid: choose from {', '.join(present)}")
    if not present[device]:
        here = ", ".join(name for name, there in present.items() if there)
        raise ValueError(f"device: {device!r} is not on this machine; it has {here}")


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _check_distribution(accelerator: Accelerator) -> None:
    asked = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if asked and accelerator.distributed_type != DistributedType.FSDP:
        raise ValueError(
            f"accelerate: FSDP was asked for, but {accelerator.device.type} would run it as plain data parallel; "
            "run on CUDA devices or launch without --use_fsdp"
        )
