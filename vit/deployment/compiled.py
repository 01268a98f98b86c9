"""A program compiled ahead of time for this machine's processor, by torch's AOTInductor.

The file holds machine code and weights. Its kernels run one after another without Python, and without checks of the
input. It uses as many threads as torch does then.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from vit.compiling import compiler_message, has_cpp_compiler
from vit.config import check
from vit.layers.packed import FUSES_GELU
from vit.progress import tracked

_TURNS = 15
_SHORTEST = 0.05
"""Seconds of a turn at least."""
_METADATA = "aot_inductor.metadata"
_OPTIONS: dict[str, Any] = {
    "cpp.dynamic_threads": True,
    # checks of the input, where a user asks for them, would refuse one image: torch takes a free size for two or more
    "aot_inductor.check_lowerbound": False,
}
_ONCE: dict[str, Any] = {"realize_opcount_threshold": 6}
"""An int8 layer reads its input twice: once for the range, once to quantize it. The compiler would compute the GELU
before it for either; with so few operations it stores the result."""
_LOGGERS = ("torch._inductor", "torch.utils.cpp_extension")
"""They remark on each operator that is called instead of compiled, and on a missing CUDA."""

Program = Callable[[Tensor], Tensor]


def check_compiler() -> None:
    """ValueError without a C++ compiler."""
    rule = "it needs a C++ compiler, and none was found; install g++, or name one in CXX"
    check(has_cpp_compiler(), "--format", "compiled", rule)


def compile_program(
    program: torch.export.ExportedProgram, path: Path, description: Mapping[str, str], *, eight_bits: bool
) -> None:
    """Compile the program into the file, which holds the texts of `description`.

    Weights of float numbers are stored as they are, or packed for the processor, whichever answers one image faster
    here; so such a program is compiled twice. Eight bits have to be packed.
    """
    ways = (True,) if eight_bits else (False, True)
    with TemporaryDirectory(dir=path.parent, prefix=f"{path.name}-") as folder:
        files = []
        if not FUSES_GELU:
            program = program.run_decompositions({torch.ops.aten.gelu.default: _gelu_apart})
        for packed in tracked(ways, "compiling", len(ways), unit="file" if eight_bits else "files"):
            options = {"freezing": packed, **_OPTIONS, _METADATA: dict(description)}
            files.append(Path(folder) / f"{packed}.pt2")
            _compile(program, files[-1], options | (_ONCE if eight_bits else {}))
        _faster(files, program).replace(path)


def load_compiled(path: Path) -> Program:
    """The program, as a function of tensors whatever their order in memory. Type and shape are not checked."""
    opened = torch._inductor.aoti_load_package(str(path))

    def run(images: Tensor) -> Tensor:
        answers: Tensor = opened(images.contiguous())  # others' numbers would be read in the wrong order
        return answers

    return run


def _gelu_apart(x: Tensor, *, approximate: str = "none") -> Tensor:
    """GELU (erf) as the compiler does not recognise it: it would become part of the packed product before it."""
    if approximate != "none":
        return NotImplemented  # torch leaves it as it is
    return x * (torch.erf(x * math.sqrt(0.5)) * 0.5 + 0.5)


def _compile(program: torch.export.ExportedProgram, path: Path, options: dict[str, Any]) -> None:
    from torch._inductor.exc import CppCompileError, InductorError

    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with torch.no_grad():
            torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=options)
    except InductorError as error:
        if isinstance(cause := error.inner_exception, CppCompileError):
            rule = f"the C++ compiler {cause.cmd[0]} failed: {compiler_message(cause)}"
        else:
            rule = f"torch's compiler failed: {compiler_message(error)}"
        raise ValueError(f"--format: {rule}") from error
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _faster(files: list[Path], program: torch.export.ExportedProgram) -> Path:
    """The file whose fastest turn with one image is the shortest."""
    if len(files) == 1:
        return files[0]
    (images,), _ = program.example_inputs
    one = images[:1]
    fastest = dict.fromkeys(files, float("inf"))
    programs = {file: load_compiled(file) for file in files}
    with torch.inference_mode():
        for turn in range(_TURNS + 1):
            for file, run in programs.items():
                seconds = _seconds_per_call(run, one)
                if turn:  # the first warms up
                    fastest[file] = min(fastest[file], seconds)
    return min(files, key=fastest.__getitem__)


def _seconds_per_call(run: Program, images: Tensor) -> float:
    begun, calls = time.perf_counter(), 0
    while (spent := time.perf_counter() - begun) < _SHORTEST:
        run(images)
        calls += 1
    return spent / calls
