"""Where the work runs: device, precision, processes. Builds the one `Accelerator` and refuses what it would replace.

On a CPU Accelerate quietly turns FSDP into DDP, and fp16 into fp32. Here both are errors: a run that says fp16 is fp16.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from torch import Tensor

from vit.launcher import told_cpu
from vit.processor import MULTIPLIES_BFLOAT16

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""glibc's numbers for what `mallopt` sets (malloc.h)."""


def make_accelerator(device: str = "auto", precision: str = "auto", **options: Any) -> Accelerator:
    """The Accelerator for `device` (auto, cpu, cuda, mps) and `precision` (auto, fp32, bf16, fp16).

    ValueError when the device is not there, cannot compute in that precision, or the launcher asked for something else.
    """
    _check_device(device)
    if "WORLD_SIZE" not in os.environ:  # one process: a second run in it may ask for another precision
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
    if told_cpu() and device not in ("auto", "cpu"):
        raise ValueError(f"device: {device!r} contradicts the launcher's --cpu; give one of them")
    kind = "cpu" if told_cpu() or device == "cpu" else _best_device()
    chosen = choose_precision(kind, precision)
    if kind == "cpu":
        _keep_freed_memory()
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
        return MULTIPLIES_BFLOAT16
    return False


def _keep_freed_memory() -> None:
    """Have glibc keep freed blocks: it returns large ones, and every step would fault its activations in again."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_MMAP_MAX, 0)
            libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def gather_uneven(accelerator: Accelerator, values: Tensor) -> Tensor:
    """Concatenate over processes along the first axis, where each process may hold another number of rows."""
    if accelerator.num_processes == 1:
        return values
    sizes = accelerator.gather(torch.tensor([len(values)], device=values.device)).tolist()
    padded = values.new_zeros((max(sizes), *values.shape[1:]))
    padded[: len(values)] = values
    rows = accelerator.gather(padded).reshape(len(sizes), max(sizes), *values.shape[1:])
    return torch.cat([block[:size] for block, size in zip(rows, sizes, strict=True)])


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
    if accelerator.distributed_type == DistributedType.FSDP:
        plugin = accelerator.state.fsdp_plugin
        if plugin.fsdp_version != 2:
            raise ValueError(
                f"accelerate: FSDP version {plugin.fsdp_version} gives parameters other names and shapes; "
                "launch with --fsdp_version 2"
            )
        if plugin.activation_checkpointing:
            raise ValueError(
                "accelerate: FSDP's activation checkpointing gives parameters other names; launch with "
                "--fsdp_activation_checkpointing false and set train.gradient_checkpointing true"
            )
