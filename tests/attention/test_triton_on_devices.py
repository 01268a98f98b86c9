"""The fused kernel on devices: compiled for absent ones, run and timed on a present one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.attention.test_triton import DEVICE, TOLERANCE, assert_equals_reference, draw, vectors
from vit.attention import masks
from vit.attention.core import attend

ABSENT_DEVICE = """
import sys, torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

class Device:
    get_current_target = staticmethod(lambda: GPUTarget("cuda", int(sys.argv[1]), 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda _: 0)

def compile_only(program, *args, grid, warmup, **options):
    compiled = run(program, *args, grid=grid, warmup=True, **options)
    print(program.fn.__name__, compiled.metadata.shared, "mma" in compiled.asm["ptx"])

triton.runtime.driver.set_active(Device())
run, JITFunction.run = JITFunction.run, compile_only
"""
ATTENTION = """
import vit.attention.backends.triton_kernels as programs
from vit.attention.backends.triton_blocks import Terms, strided

query = torch.empty(1, 2, 256, int(sys.argv[2]), dtype=torch.bfloat16)
log_sum, pairs = torch.empty(1, 2, 256), torch.empty(1, 1, 1, 1).expand(1, 2, 256, 256)
terms = Terms(0.1, strided(pairs.bool().expand(pairs.shape)), strided(pairs), torch.zeros(1, dtype=torch.int64), 0.1)
programs.forward(query, query, query, terms, query, log_sum)
programs.backward(query, query, query, terms, query, log_sum, query, [query] * 3, strided(pairs))
"""
STATISTICS = """
from vit.attention.statistics import attention_statistics, fused

fused.check_device = lambda *_, **__: None
vectors = torch.randn(1, 2, 196, int(sys.argv[2]), dtype=torch.bfloat16)
places = torch.cartesian_prod(torch.arange(14.0), torch.arange(14.0))
options = {"key_groups": {"first": torch.arange(196) < 1}, "backend": "triton"}
attention_statistics(vectors, vectors, coordinates=places, **options)
pairs = {"distances": torch.rand(196, 196), "mask": torch.ones(196, 196).bool(), "bias": torch.zeros(196, 196)}
attention_statistics(vectors, vectors, **pairs, **options)
attention_statistics(vectors, vectors, cross=True, **options)
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 128, 256])
@pytest.mark.parametrize(("capability", "kilobytes"), [(80, 163), (90, 227)], ids=["Ampere", "Hopper"])
@pytest.mark.parametrize(
    ("program", "names"),
    [(ATTENTION, ["_forward", "_backward_query", "_backward_key"]), (STATISTICS, ["_statistics"] * 3)],
    ids=["attention", "statistics"],
)
def test_compiles_for_absent_devices(
    program: str, names: list[str], capability: Any, kilobytes: Any, width: Any
) -> None:
    """With mask, bias, its gradient and dropout; triton's own assembler is enough."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", ABSENT_DEVICE + program, str(capability), str(width)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, *_ in lines] == names
    assert all(int(shared) <= kilobytes * 1024 and on_matrix_units == "True" for _, shared, on_matrix_units in lines)


IMAGE = {"b": 16, "h": 12, "g": 12, "n": 197, "m": 197, "d": 64, "v": 64}
"""ViT-B/16."""


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", ["plain", "learned bias", "mask", "grouped"])
def test_at_the_sizes_of_a_model(dtype: Any, case: Any) -> None:
    sizes = IMAGE | ({"g": 4} if case == "grouped" else {})
    bias = draw(1, 12, 197, 197) if case == "learned bias" else None
    mask = masks.padding(torch.arange(16, device=DEVICE) * 13, 197) if case == "mask" else None
    assert_equals_reference(vectors(**sizes), dtype=dtype, bias=bias, mask=mask)


def sum_and_differentiate(name: Any, tensors: Any, mask: Any) -> Any:
    return torch.autograd.grad(attend(*tensors, mask=mask, backend=name).sum(), tensors)


@pytest.mark.cuda
@pytest.mark.filterwarnings("default")  # flex's compiler's own
@pytest.mark.parametrize("tokens", [197, 1024, 4096])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "causal"])
def test_time_compared_to_the_other_backends(tokens: Any, masked: Any) -> None:
    """Prints milliseconds in bfloat16; gradients include a forward pass."""
    from triton.testing import do_bench

    tensors = vectors(**IMAGE | {"n": tokens, "m": tokens})
    tensors = [tensor.bfloat16().requires_grad_() for tensor in tensors]
    mask = masks.causal(tokens, device=DEVICE) if masked else None
    for name in ("triton", "sdpa", "flex"):
        forward = do_bench(lambda name=name: attend(*tensors, mask=mask, backend=name))
        step = do_bench(lambda name=name: sum_and_differentiate(name, tensors, mask))
        kind = "causal" if masked else "all"
        assert 0 < forward < step
        print(f"{name:7} {tokens:5} tokens {kind:7} {forward:.3f} ms, with gradients {step:.3f} ms")
