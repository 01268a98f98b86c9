"""This machine: its processor, and everything that a measured time depends on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch

from vit.versions import package_versions

AMD = "AuthenticAMD"
"""The vendor, as `processor_vendor` gives it."""
HAS_VNNI: bool = torch.cpu._is_vnni_supported()
"""True on an x86 processor that adds four products of bytes in 32 bits (AVX-512 VNNI)."""


def processor_name() -> str:
    """The model name on Linux; elsewhere the architecture."""
    return _fact("model name") or platform.machine()


def processor_vendor() -> str:
    """`AuthenticAMD`, `GenuineIntel` or another; on virtual machines the model's name often tells neither."""
    return _fact("vendor_id") or platform.processor().rpartition(" ")[2]  # Windows: "AMD64 Family 25 …, AuthenticAMD"


def _fact(name: str) -> str:
    """A field of the first processor in `/proc/cpuinfo`; empty on other systems than Linux."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def multiplies_bfloat16(*, avx512: bool, amx: bool, vendor: str) -> bool:
    """True if bfloat16 products take less time than float32's: with AMX, or with AVX512_BF16 on AMD's processors.

    Zen 4's run at twice float32's speed. Intel's without AMX run at half of it: a Xeon issues `vdpbf16ps` a quarter as
    often as `vfmadd231ps` (`LOG.md`).
    """
    return amx or (avx512 and vendor == AMD)


_AVX512_BFLOAT16, _AMX = torch.cpu._is_avx512_bf16_supported(), torch.cpu._is_amx_tile_supported()
HAS_BFLOAT16: bool = _AVX512_BFLOAT16 or _AMX
"""True on an x86 processor with instructions for bfloat16; others emulate it, slower still. ARM's are not checked."""
MULTIPLIES_BFLOAT16 = multiplies_bfloat16(avx512=_AVX512_BFLOAT16, amx=_AMX, vendor=processor_vendor())
"""True where this processor computes bfloat16 products faster than float32's."""


def machine_memory() -> int:
    """Bytes of the machine's memory, or of the limit that a container has on Linux."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    total = int(psutil.virtual_memory().total)
    return min(total, int(text)) if text.isdecimal() else total


def device_name(device: str) -> str:
    """The name of a CUDA device; of anything else, the processor's."""
    return torch.cuda.get_device_name() if torch.device(device).type == "cuda" else processor_name()


def machine(device: str, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Describe what a measured time depends on besides the program, with the versions of the installed `packages`."""
    return {
        "device": device_name(device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "multiplies_bfloat16": MULTIPLIES_BFLOAT16,
        "system": f"{platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version(), **package_versions(["torch", *packages])},
    }
