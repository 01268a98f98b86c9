"""Device, precision and processes: builds the one `Accelerator` and refuses settings that it would silently change.

On a CPU Accelerate turns FSDP into DDP and fp16 into fp32 without an error; here both are errors.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedDataParallelKwargs, DistributedType, DynamoBackend, gather_object
from torch import Tensor

from vit.config.rules import check, nearest
from vit.launcher import launched_with_cpu_flag
from vit.processor import MULTIPLIES_BFLOAT16, machine_memory

__all__ = [
    "DTYPES",
    "Accelerator",
    "check_one_process",
    "choose_precision",
    "gather_object",
    "gather_uneven",
    "gather_with_gradients",
    "has_fast_bf16",
    "keep_freed_memory",
    "make_accelerator",
    "rank_and_world_size",
]

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""By their names as `precision_of` gives them."""
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Parameters of glibc's `mallopt` (malloc.h)."""


def make_accelerator(device: str = "auto", precision: str = "auto", **options: Any) -> Accelerator:
    """The Accelerator for `device` (auto, cpu, cuda, mps) and `precision` (auto, fp32, bf16, fp16).

    `auto` never chooses mps, on which nothing here has been tested: much is computed in float64, which it lacks.
    ValueError for a missing device, a precision that it does not support, and settings that contradict the launcher's.
    """
    _check_device(device)
    if "WORLD_SIZE" not in os.environ:  # one process: a second run in it may ask for another precision
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
    if launched_with_cpu_flag() and device not in ("auto", "cpu"):
        raise ValueError(f"device: {device!r} contradicts the launcher's --cpu; give one of them")
    if launched_with_cpu_flag() or device == "cpu":
        kind = "cpu"
    elif torch.cuda.is_available():
        kind = "cuda"
    else:
        kind = "mps" if device == "mps" else "cpu"
    chosen = choose_precision(kind, precision)
    if int(os.environ.get("WORLD_SIZE", "1")) > 2:
        # else DDP orders the gradients anew after its first step. The order says which process's part is added first,
        # and with it the last bits of a sum of three: a resumed run would not have those of an unbroken one
        options["kwargs_handlers"] = [DistributedDataParallelKwargs(find_unused_parameters=True)]
        warnings.filterwarnings("ignore", "find_unused_parameters=True was specified")
    accelerator = Accelerator(cpu=kind == "cpu", mixed_precision={"fp32": "no"}.get(chosen, chosen), **options)
    _check_distribution(accelerator)
    return accelerator


def choose_precision(kind: str, precision: str) -> str:
    """Resolve `auto`: bf16 where it is faster than fp32, unless the launcher's `--mixed_precision` says otherwise.

    ValueError for what the device does not compute, and for other names: Accelerate would take fp8 with torchao.
    """
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched not in ("no", "fp32"):
        if precision not in ("auto", launched):
            rule = f"contradicts the launcher's --mixed_precision {launched}; give one of them"
            raise ValueError(f"train.precision: {precision!r} {rule}")
        precision = launched
    check(precision in PRECISIONS, "train.precision", precision, nearest(precision, PRECISIONS))
    if precision == "fp16" and kind == "cpu":
        raise ValueError("train.precision: 'fp16' is not computed on a CPU; use 'bf16', 'fp32' or 'auto'")
    return ("bf16" if has_fast_bf16(kind) else "fp32") if precision == "auto" else precision


def has_fast_bf16(kind: str) -> bool:
    """True if the device computes bfloat16 products faster than float32's."""
    if kind == "cuda":
        return torch.cuda.get_device_capability()[0] >= 8
    if kind == "cpu":
        return MULTIPLIES_BFLOAT16
    return False


def device_memory(device: torch.device) -> int:
    """All bytes of a GPU's memory, else of what this machine, or a container, has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return machine_memory()


def precision_of(accelerator: Accelerator) -> str:
    """`fp32`, `bf16` or `fp16`."""
    return {"no": "fp32"}.get(accelerator.mixed_precision, str(accelerator.mixed_precision))


def rank_and_world_size(accelerator: Accelerator) -> dict[str, int]:
    """`rank` and `world_size`, as loaders take them."""
    return {"rank": accelerator.process_index, "world_size": accelerator.num_processes}


def check_one_process(accelerator: Accelerator, option: str, what: str) -> None:
    """ValueError where a launcher has started several processes for `what`, which only one can do."""
    if accelerator.num_processes > 1:
        raise ValueError(f"{option}: {what} by one process; leave out accelerate launch")


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks for the rest of the process, for many batches of one size on a CPU."""
    # by default it returns large blocks to the system, and every batch faults its activations in again
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_MMAP_MAX, 0)
            libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def gather_uneven(accelerator: Accelerator, values: Tensor) -> Tensor:
    """Concatenate over processes along the first axis; processes may hold different numbers of rows."""
    if accelerator.num_processes == 1:
        return values
    sizes = accelerator.gather(torch.tensor([len(values)], device=values.device)).tolist()
    padded = values.new_zeros((max(sizes), *values.shape[1:]))
    padded[: len(values)] = values
    rows = accelerator.gather(padded).reshape(len(sizes), max(sizes), *values.shape[1:])
    return torch.cat([block[:size] for block, size in zip(rows, sizes, strict=True)])


def gather_with_gradients(accelerator: Accelerator, values: Tensor) -> tuple[Tensor, int]:
    """As `gather_uneven`, and where this process's rows begin; the gradient of a row reaches the process it came from.

    Every process must use the result in its loss, and take the gradient.
    """
    if accelerator.num_processes == 1:
        return values, 0
    counts = accelerator.gather(torch.tensor([len(values)], device=values.device)).tolist()
    first = sum(counts[: accelerator.process_index])
    gathered: Tensor = _GatheredRows.apply(values, accelerator, first)
    return gathered, first


class _GatheredRows(torch.autograd.Function):
    """The rows of all processes; their gradient is the sum of what the processes' losses give."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, accelerator: Accelerator, first: int) -> Tensor:
        ctx.accelerator, ctx.own = accelerator, slice(first, first + len(values))
        return gather_uneven(accelerator, values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.accelerator.reduce(gradient.contiguous(), "sum")[ctx.own], None, None


def _check_device(device: str) -> None:
    available = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device not in available:
        raise ValueError(f"device: {device!r} is not valid: choose from {', '.join(available)}")
    if not available[device]:
        names = ", ".join(name for name, is_available in available.items() if is_available)
        raise ValueError(f"device: {device!r} is not available on this machine; choose from {names}")


def _check_distribution(accelerator: Accelerator) -> None:
    use_fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if use_fsdp and accelerator.distributed_type != DistributedType.FSDP:
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
    dynamo = getattr(accelerator.state, "dynamo_plugin", None)
    if dynamo is not None and dynamo.backend != DynamoBackend.NO:
        raise ValueError(
            "accelerate: its compilation gives parameters other names; launch with --dynamo_backend no and set "
            "train.compile true"
        )
