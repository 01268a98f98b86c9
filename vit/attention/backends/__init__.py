"""Backends: one file per way to compute attention. Each computes exactly what is asked for or raises `Refused`."""

from __future__ import annotations

from vit.attention.backends import flex, products, sdpa, triton
from vit.attention.backends.options import AttentionOptions, Backend, Refused

BACKENDS: dict[str, Backend] = {
    "reference": products.reference,
    "matmul": products.matmul,
    "sdpa": sdpa.sdpa,
    "flex": flex.flex,
    "triton": triton.triton,
}

__all__ = ["BACKENDS", "AttentionOptions", "Refused"]
