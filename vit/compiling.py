"""Whether torch's compiler looks on."""

from __future__ import annotations

import torch

_TELLS_EXPORTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
"""False for versions of torch, as 2.11, that take every compilation for an export."""


def compiles_here() -> bool:
    """True while `torch.compile` traces, False in an export, whose program may run elsewhere.

    Before torch 2.14 also True in a strict export.
    """
    return torch.compiler.is_dynamo_compiling() and not (_TELLS_EXPORTS and torch.compiler.is_exporting())
