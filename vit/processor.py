"""The processor of this machine: its name, and what it multiplies itself. Knows nothing of what is computed on it."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

MULTIPLIES_BFLOAT16: bool = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
"""Whether it is an x86 with bfloat16 matrix instructions; one without emulates it, slower than float32. ARM's are not
looked for."""


def processor_name() -> str:
    """Linux keeps it in a file."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
