"""Backends: ways to compute the same attention, one a file. Each answers exactly what is asked or refuses by name."""

from __future__ import annotations

from vit.attention.backends.flex import flex
from vit.attention.backends.products import matmul, reference, reference_weights
from vit.attention.backends.request import Backend, Refused, Request
from vit.attention.backends.sdpa import sdpa
from vit.attention.backends.triton import triton

BACKENDS: dict[str, Backend] = {"reference": reference, "matmul": matmul, "sdpa": sdpa, "flex": flex, "triton": triton}

__all__ = ["BACKENDS", "Refused", "Request", "reference_weights"]
