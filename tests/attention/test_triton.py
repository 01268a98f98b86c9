"""The fused kernel against `reference` in float64: on a CUDA device, or in triton's interpreter where there is none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor

from vit.attention import masks
from vit.attention.backends import Refused
from vit.attention.backends import triton as backend
from vit.attention.core import attend
from vit.attention.scores import Additive, Cosine
from vit.randomness import SampleRandom

programs = pytest.importorskip("vit.attention.backends.triton_kernels", reason="triton is not installed")
blocks = sys.modules["vit.attention.backends.triton_blocks"]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
B, H, G, N, M, D, V = 2, 2, 1, 17, 19, 5, 11
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Relative to the largest number; the interpreter truncates bfloat16 instead of rounding it."""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 x 16, so that few tokens make many blocks."""
    monkeypatch.setattr(programs, "tiles", lambda *_args, **_kwargs: blocks.Tiles(16, 16, 4, 1))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE)


def vectors(b: int = B, h: int = H, g: int = G, n: int = N, m: int = M, d: int = D, v: int = V) -> list[Tensor]:
    return [draw(b, h, n, d, seed=1), draw(b, g, m, d, seed=2), draw(b, g, m, v, seed=3)]


def answers(name: str, dtype: torch.dtype, tensors: list[Tensor], bias: Tensor | None, **options: Any) -> list[Tensor]:
    """The output, and the gradients of query, key, value and bias for one fixed gradient of the output."""
    learned = [tensor.detach().to(dtype).requires_grad_() for tensor in (*tensors, *([] if bias is None else [bias]))]
    given: dict[str, Any] = {} if bias is None else {"bias": learned[3]}
    query, key, value = learned[:3]
    attended = attend(query, key, value, **given, **options, backend=name)
    gradients = torch.autograd.grad(attended, learned, draw(*attended.shape).to(dtype))
    assert all(tensor.dtype == dtype for tensor in (attended, *gradients))
    return [attended.detach(), *gradients]


def assert_equals_reference(
    tensors: list[Tensor] | tuple[Tensor, Tensor, Tensor],
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> None:
    tensors = [tensor.to(dtype) for tensor in tensors]
    bias = None if bias is None else bias.to(dtype)
    found = answers("triton", dtype, tensors, bias, **options)
    expected = answers("reference", torch.float64, tensors, bias, **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.double() - theirs).abs().max() <= TOLERANCE[dtype] * max(1.0, theirs.abs().max().item())


def some_mask() -> Tensor:
    mask = torch.rand(B, H, N, M, generator=torch.Generator().manual_seed(4)) < 0.3
    mask[0, 1, 3], mask[1, 0] = False, False
    return mask.to(DEVICE)


def lengths(*numbers: int | list[int]) -> Tensor:
    return masks.padding(torch.tensor(numbers, device=DEVICE), M)


def segment_numbers(length: int) -> Tensor:
    return torch.arange(length, device=DEVICE).repeat(B, 1) // 7


MASKS = {
    "none": lambda: None,
    "lengths": lambda: lengths(7, 0),
    "lengths of queries": lambda: lengths(*torch.randint(0, M, (B, N), generator=torch.manual_seed(5)).tolist()),
    "causal": lambda: masks.causal(N, M, device=DEVICE),
    "window": lambda: masks.window(N, 3, M, device=DEVICE),
    "segments": lambda: masks.segments(segment_numbers(N), segment_numbers(M)),
    "causal and lengths": lambda: masks.causal(N, M, device=DEVICE) & lengths(17, 11),
    "any, with dead rows": some_mask,
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    assert_equals_reference(vectors(), mask=MASKS[mask]())


def test_a_dead_row_is_zero_in_value_and_gradient() -> None:
    attended, query_gradient, *_ = answers("triton", torch.float32, vectors(), None, mask=some_mask())
    for tensor in (attended, query_gradient):
        assert not tensor[0, 1, 3].any()
        assert not tensor[1, 0].any()
        assert tensor[1, 1].any()


@pytest.mark.parametrize("shape", [(1, H, N, M), (B, 1, 1, M), (1, 1, N, 1)])
def test_a_learned_bias(shape: tuple[int, ...]) -> None:
    assert_equals_reference(vectors(), bias=draw(*shape), mask=lengths(7, 17))


@pytest.mark.parametrize(
    "sizes",
    [
        {"b": 1, "h": 6, "g": 2, "n": 3},
        {"b": 1, "g": 2, "d": 131, "v": 7},
        {"b": 1, "h": 1, "n": 1, "m": 1, "d": 1, "v": 1},
        {"b": 1, "h": 1, "n": 17, "m": 17, "d": 23, "v": 256},
        {"b": 1, "n": 131, "m": 67},
    ],
    ids=str,
)
def test_shapes(sizes: dict[str, int]) -> None:
    assert_equals_reference(vectors(**sizes))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_of_16_bits(dtype: torch.dtype) -> None:
    assert_equals_reference(vectors(), dtype=dtype, bias=draw(1, H, N, M), mask=lengths(7, 17))


def test_no_keys_give_zeros() -> None:
    assert not attend(*vectors(m=0), backend="triton").any()


def test_scores_of_any_size() -> None:
    query, key, value = vectors()
    assert_equals_reference((query * 100, key * 100, value), score=Cosine(), scale=-30.0)
    attended = attend(query * 1e10, key * 1e10, value, backend="triton")
    assert torch.isfinite(attended).all()


def test_heads_are_adjacent_in_memory() -> None:
    packed = draw(B, N, 3 * H * D).requires_grad_()
    query, key, value = rearrange(packed, "b n (three h d) -> three b h n d", three=3, h=H).unbind(0)
    triton, reference = (attend(query, key, value, backend=name) for name in ("triton", "reference"))
    gradients = (torch.autograd.grad(attended.sum(), packed)[0] for attended in (triton, reference))
    torch.testing.assert_close(*gradients)


@pytest.mark.usefixtures("small_blocks")
def test_dropout_equals_the_references() -> None:
    rng = SampleRandom.at(3, 1, torch.tensor([5, 8], device=DEVICE))
    assert_equals_reference(vectors(), dropout=0.4, rng=rng, mask=masks.causal(N, M, device=DEVICE))
    query, key, _ = vectors(h=1)
    eye = torch.eye(M, device=DEVICE).expand(B, 1, M, M)
    weights = attend(query, key, eye, dropout=0.4, rng=rng, backend="triton")
    torch.testing.assert_close(weights == 0, rng.uniform(1, N, M) < 0.4)


@pytest.mark.usefixtures("small_blocks")
def test_masked_blocks_are_not_read() -> None:
    """NaN in keys and values of blocks that no query may attend to, and in queries that may attend to nothing there."""
    mask = torch.zeros(1, 1, 32, 48, dtype=torch.bool, device=DEVICE)
    mask[..., :16, :16], mask[..., 16:, 32:] = True, True
    clean = vectors(n=32, m=48)
    dirty = [tensor.clone() for tensor in clean]
    for tensor in dirty[1:]:
        tensor[:, :, 16:32] = float("nan")
    found, expected = (answers("triton", torch.float32, tensors, None, mask=mask) for tensors in (dirty, clean))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not found[2][:, :, 16:32].any()


@pytest.mark.slow
def test_a_mask_may_be_larger_than_32_bits_count() -> None:
    """Its rows lie 2²⁵ entries apart, as in a map of as many tokens; it takes 3 GB."""
    rows, step = 80, 2**25
    storage = torch.zeros((rows - 1) * step + M, dtype=torch.bool, device=DEVICE)
    wide = storage.as_strided((1, 1, rows, M), (0, 0, step, 1))
    mask = draw(1, 1, rows, M) > 0
    wide.copy_(mask)
    tensors = vectors(b=1, n=rows)
    found, expected = (answers("triton", torch.float32, tensors, None, mask=each) for each in (wide, mask))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_masks_and_biases_are_not_expanded_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    forward = programs.forward
    monkeypatch.setattr(programs, "forward", lambda *args: seen.append(args[3]) or forward(*args))
    mask, bias = lengths(7, 17), draw(1, H, 1, 1)
    attend(*vectors(), mask=mask, bias=bias, backend="triton")
    assert seen[0].mask.start.untyped_storage().nbytes() == B * M
    assert tuple(seen[0].mask[1:]) == (M, 0, 0, 1)
    assert seen[0].bias.start.untyped_storage().nbytes() == H * 4


def test_it_is_an_operator_of_torch() -> None:
    """Schema, autograd and shapes without data, as `torch.compile` relies on them."""
    query, key, value = (tensor.requires_grad_() for tensor in vectors(b=1, m=5, n=3))
    bias = draw(1, 1, 3, 5).requires_grad_()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(backend._attend, (query, key, value, None, bias, None, 0.5, 0.0), test_utils=checks)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)(query, key, value, backend="triton")
    torch.testing.assert_close(compiled, attend(query, key, value, backend="triton"))


def test_autocast() -> None:
    query, key, value = vectors()
    with torch.autocast(DEVICE.type, torch.bfloat16):
        attended = attend(query, key, value.bfloat16(), score=Cosine(), backend="triton")
    assert attended.dtype == torch.bfloat16
    torch.testing.assert_close(attended.float(), attend(query, key, value, score=Cosine()), atol=2e-2, rtol=0)


REFUSALS = [
    ("at most 256, not 257 and values of 11, use 'sdpa'", {"d": 257}, {}),
    ("at most 256, not 5 and values of 263, use 'sdpa'", {"v": 263}, {}),
    ("draws dropout from rng only and none is given, use 'sdpa'", {}, {"dropout": 0.1}),
    ("the score Additive is not an inner product, use 'reference'", {}, {"score": Additive(D, D, 3).to(DEVICE)}),
]


@pytest.mark.parametrize(("message", "sizes", "request_"), REFUSALS, ids=[message for message, *_ in REFUSALS])
def test_refusals(message: str, sizes: dict[str, Any], request_: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=f"'triton' is not valid: .*{message}"):
        attend(*vectors(**sizes), **request_, backend="triton")


def test_unsupported_types() -> None:
    query, key, value = vectors()
    with pytest.raises(Refused, match=r"one type, float32, bfloat16 or float16, not torch.float64, use 'reference'"):
        attend(query.double(), key.double(), value.double(), backend="triton")
    with pytest.raises(ValueError, match=r"of one type, not torch.float32, torch.float32, torch.float16"):
        attend(query, key, value.half(), backend="triton")


def test_a_learned_bias_is_refused_in_deterministic_mode() -> None:
    bias = draw(1, H, N, M).requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(Refused, match="sums a bias's gradient in no fixed order, use 'matmul'"):
            attend(*vectors(), bias=bias, backend="triton")
        attend(*vectors(), bias=bias.detach(), backend="triton")
    finally:
        torch.use_deterministic_algorithms(False)


def test_second_derivatives_are_refused() -> None:
    query, key, value = (tensor.requires_grad_() for tensor in vectors(b=1, n=3, m=5))
    (gradient,) = torch.autograd.grad(attend(query, key, value, backend="triton").sum(), query, create_graph=True)
    with pytest.raises(Refused, match="no second derivative, use 'reference'"):
        gradient.sum().backward()


def test_unsupported_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "INTERPRETED", programs.tl.constexpr(False))
    query, key, value = (tensor.cpu() for tensor in vectors())
    with pytest.raises(Refused, match="runs on CUDA devices and these tensors are on 'cpu', use 'sdpa', or set TRITON"):
        attend(query, key, value, backend="triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(Refused, match=r"needs compute capability \(8, 0\) and the device has \(7, 5\), use 'sdpa'"):
        backend.check_device(torch.device("cuda"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match="the package triton is not installed, use 'sdpa'"):
        attend(query, key, value, backend="triton")


def test_vit_does_not_import_triton() -> None:
    code = "import sys, vit, vit.attention.core; raise SystemExit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
