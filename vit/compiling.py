"""Whether torch.compile is tracing this call, whether it has a C++ compiler, and what a failed one said."""

from __future__ import annotations

import torch

_TELLS_EXPORTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)
"""False for versions of torch, as 2.11, that take every compilation for an export."""


def compiles_here() -> bool:
    """True while `torch.compile` traces, False in an export, whose program may run elsewhere.

    Before torch 2.14 also True in a strict export.
    """
    return torch.compiler.is_dynamo_compiling() and not (_TELLS_EXPORTS and torch.compiler.is_exporting())


def has_cpp_compiler() -> bool:
    """True where torch finds a C++ compiler: the one that `CXX` names, if it is set."""
    from torch._inductor.cpp_builder import get_cpp_compiler  # the compiler takes a second to import
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):  # OSError: CXX names what cannot be run
        return False
    return True


def compiler_message(error: Exception) -> str:
    """The first line with which a compilation tells its error; a `CppCompileError` holds what the C++ compiler said."""
    lines = str(getattr(error, "output", error)).splitlines()
    first = next((line for line in lines if "error" in line), lines[0] if lines else "it does not say why")
    return first.strip()[:300]
