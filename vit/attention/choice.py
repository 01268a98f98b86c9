"""Which backend `auto` tries first, second and last, from what was measured. A backend that refuses is passed over.

`vit bench attention` measures again what stands in the table; its rows are read from the top, and the first that fits
decides. Letters: see `attend.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vit.attention.backends import Request
from vit.processor import MULTIPLIES_BFLOAT16

_HALF = (torch.bfloat16, torch.float16)


class Facts(NamedTuple):
    """What a row's conditions are about."""

    device: str
    half: bool
    fast_bfloat16: bool
    learns: bool
    learns_bias: bool
    compiled: bool
    num_keys: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """Where all conditions hold (None: any), these backends, in this order."""

    device: str | None = None
    half: bool | None = None
    """Whether the vectors have 16 bits."""
    fast_bfloat16: bool | None = None
    """Whether they are bfloat16 and the processor multiplies it itself."""
    learns: bool | None = None
    """Whether a gradient is asked for."""
    learns_bias: bool | None = None
    compiled: bool | None = None
    """Whether `torch.compile` is at work."""
    up_to_keys: int | None = None
    order: tuple[str, ...]
    reason: str

    def fits(self, facts: Facts) -> bool:
        return (
            self.device in (None, facts.device)
            and self.half in (None, facts.half)
            and self.fast_bfloat16 in (None, facts.fast_bfloat16)
            and self.learns in (None, facts.learns)
            and self.learns_bias in (None, facts.learns_bias)
            and self.compiled in (None, facts.compiled)
            and (self.up_to_keys is None or facts.num_keys <= self.up_to_keys)
        )


TABLE = (
    Row(
        device="cuda",
        learns_bias=True,
        order=("triton", "sdpa", "matmul", "reference"),
        reason="sdpa writes the map out for a bias that learns; not measured on a device yet",
    ),
    Row(
        learns_bias=True,
        order=("matmul", "reference"),
        reason="sdpa writes the map out for a bias that learns, and adds it in a pass of its own",
    ),
    Row(
        device="cpu",
        half=True,
        learns=True,
        up_to_keys=512,
        order=("matmul", "sdpa", "reference"),
        reason="sdpa's backward is slow in 16 bits: matmul trained 4.9 times faster at 65 tokens, 2.3 at 197, 1.6 at "
        "577, with a mask 4.5, 2.2 and 1.4 (two cores, AVX512_BF16); on one core without it 2.8 times faster at 65 and "
        "level at 577; longer maps, which training keeps, are not worth their memory",
    ),
    Row(
        device="cpu",
        fast_bfloat16=True,
        learns=False,
        up_to_keys=640,
        order=("matmul", "sdpa", "reference"),
        reason="oneDNN's bfloat16 products outrun sdpa's: 2.2 times faster at 65 tokens, 1.6 at 197, 1.4 at 577, with "
        "a mask 1.8, 1.5 and 1.3, for one query over 200 keys 1.8 (two cores, AVX512_BF16); level at 17, behind "
        "where a call computes next to nothing; longer maps are not worth their memory (1.3 and 1.1 at 1,025)",
    ),
    Row(
        device="cpu",
        learns=True,
        compiled=True,
        up_to_keys=128,
        order=("matmul", "sdpa", "reference"),
        reason="the compiler joins softmax and its gradient to what is around them: at 64 tokens a float32 step of a "
        "small ViT took 0.92 of the time with sdpa in batches of 8 and as much in batches of 128; at 197 tokens as "
        "much; nothing was measured between (two cores, AVX-512)",
    ),
    Row(
        device="cuda",
        order=("sdpa", "triton", "matmul", "reference"),
        reason="torch's kernels first; triton draws dropout from rng, which sdpa refuses; not measured on a device yet",
    ),
    Row(
        order=("sdpa", "matmul", "reference"),
        reason="in float32 sdpa was ahead or within a tenth at all of 17 to 1025 tokens (one core, and two; AVX-512)",
    ),
)


def preferences(query: Tensor, key: Tensor, request: Request) -> tuple[str, ...]:
    """The backends that `auto` tries, in this order; the last of them refuses nothing."""
    learns = torch.is_grad_enabled()
    facts = Facts(
        device=query.device.type,
        half=query.dtype in _HALF,
        fast_bfloat16=query.dtype == torch.bfloat16 and MULTIPLIES_BFLOAT16,
        learns=learns and query.requires_grad,
        learns_bias=learns and request.bias is not None and request.bias.requires_grad,
        compiled=torch.compiler.is_compiling(),
        num_keys=key.shape[2],
    )
    return next(row.order for row in TABLE if row.fits(facts))
