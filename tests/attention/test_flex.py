"""FlexAttention against `reference` in float64, and refusals. Kernels compile slowly on a CPU: marked slow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import vit.attention.backends  # noqa: F401
from vit.attention import masks
from vit.attention.backends import Refused
from vit.attention.backends import flex as backend
from vit.attention.core import attend
from vit.attention.scores import Additive, Cosine

B, H, G, N, M, D, V = 2, 2, 1, 17, 19, 16, 23
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Relative to the largest number."""


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def vectors(b: int = B, h: int = H, g: int = G, n: int = N, m: int = M, d: int = D, v: int = V) -> list[Tensor]:
    return [draw(b, h, n, d, seed=1), draw(b, g, m, d, seed=2), draw(b, g, m, v, seed=3)]


def some_mask() -> Tensor:
    mask = torch.rand(B, 1, N, M, generator=torch.Generator().manual_seed(4)) < 0.3
    mask[0, 0, 3] = False
    return mask


def assert_equals_reference(
    tensors: Any,
    *,
    bias: Any = None,
    mask: Any = None,
    dtype: Any = torch.float32,
    device: Any = "cpu",
    score: Any = None,
) -> None:
    """Forward; on a CUDA device the gradients too."""
    score = {} if score is None else {"score": score}
    found = []
    for name, precision in (("flex", dtype), ("reference", torch.float64)):
        inputs = [tensor.to(device, dtype).to(precision) for tensor in (*tensors, *([] if bias is None else [bias]))]
        given: dict[str, Any] = {
            "mask": None if mask is None else mask.to(device),
            "bias": None if bias is None else inputs[3],
        }
        learned = [tensor.requires_grad_() for tensor in inputs] if device == "cuda" else []
        query, key, value = inputs[:3]
        attended = attend(query, key, value, **given, **score, backend=name)
        assert attended.dtype == precision
        weights = draw(*attended.shape).to(attended)
        found.append([attended, *(torch.autograd.grad(attended, learned, weights) if learned else ())])
    for ours, theirs in zip(*found, strict=True):
        assert (ours - theirs).abs().max() <= TOLERANCE[dtype] * max(1, theirs.abs().max())


@pytest.mark.slow
def test_lengths_change_and_widths_are_primes() -> None:
    assert_equals_reference(vectors(d=13, v=11))
    assert_equals_reference(vectors(d=13, v=11, n=131, m=257), score=Cosine())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_mask_with_dead_rows_and_bias(dtype: Any) -> None:
    assert_equals_reference(vectors(), mask=some_mask(), bias=draw(1, H, N, M), dtype=dtype)
    with torch.no_grad():
        attended = attend(*(tensor.requires_grad_() for tensor in vectors()), mask=some_mask(), backend="flex")
    assert not attended[0, :, 3].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "mask", [masks.padding(torch.tensor([7, 0]), M), masks.causal(N, M)], ids=["lengths", "causal"]
)
def test_masks_and_biases_that_broadcast(mask: Any) -> None:
    assert_equals_reference(vectors(g=H), mask=mask, bias=draw(B, 1, 1, M))


REFUSALS = [
    ("FlexAttention has no dropout, use 'matmul'", {}, {"dropout": 0.1}),
    ("the score Additive is not an inner product, use 'reference'", {}, {"score": Additive(D, D, 3)}),
    ("takes no empty tensors, use 'matmul'", {"m": 0}, {}),
]


@pytest.mark.parametrize(("message", "sizes", "request_"), REFUSALS, ids=[message for message, *_ in REFUSALS])
def test_refusals(message: str, sizes: dict[str, Any], request_: dict[str, Any]) -> None:
    with pytest.raises(Refused, match=f"'flex' is not valid: .*{message}"):
        attend(*vectors(**sizes), **request_, backend="flex")


def test_gradients_on_a_cpu_are_refused() -> None:
    query, key, value = vectors()
    message = "FlexAttention has no gradients on a CPU, use 'sdpa'"
    with pytest.raises(Refused, match=message):
        attend(query, key, value.requires_grad_(), backend="flex")
    with pytest.raises(Refused, match=message):
        attend(query, key, value.detach(), bias=draw(1, H, N, M).requires_grad_(), backend="flex")


def test_unsupported_types() -> None:
    query, key, value = vectors()
    with pytest.raises(Refused, match=r"one type, float32, bfloat16 or float16, not torch.float64, use 'reference'"):
        attend(query.double(), key.double(), value.double(), backend="flex")
    with pytest.raises(ValueError, match=r"of one type, not torch.float32, torch.float32, torch.float16"):
        attend(query, key, value.half(), backend="flex")


def test_unsupported_devices() -> None:
    with pytest.raises(Refused, match="on CPU and CUDA devices, not on 'meta', use 'matmul'"):
        attend(*(tensor.to("meta") for tensor in vectors()), backend="flex")


def test_many_kernels_may_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond torch's own limit, it would materialize the map and only log that."""
    limits = []
    run = lambda *vectors, **_: limits.append(torch._dynamo.config.recompile_limit) or vectors[2]  # noqa: E731
    monkeypatch.setattr(backend, "_compiled", lambda _device: run)
    attend(*vectors(), backend="flex")
    assert limits == [backend.MAX_COMPILED]


def test_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    run = lambda *tensors, **_: seen.extend(tensors) or tensors[2]  # noqa: E731
    monkeypatch.setattr(backend, "_compiled", lambda _device: run)
    with torch.autocast("cpu", torch.bfloat16):
        attend(*vectors(), score=Cosine(), backend="flex")
    assert {tensor.dtype for tensor in seen} == {torch.bfloat16}


@pytest.mark.cuda
@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("groups", [4, 12])
def test_on_a_cuda_device_with_gradients(dtype: Any, groups: Any) -> None:
    sizes = {"b": 2, "h": 12, "g": groups, "n": 197, "m": 197, "d": 64, "v": 64}
    mask = masks.padding(torch.tensor([131, 0]), 197) & masks.window(197, 53)
    assert_equals_reference(vectors(**sizes), mask=mask, bias=draw(1, 12, 197, 197), dtype=dtype, device="cuda")


@pytest.mark.cuda
def test_heads_that_are_too_narrow_for_a_cuda_device() -> None:
    with pytest.raises(Refused, match="heads of at least 16, not 13 and values of 23, use 'triton'"):
        attend(*(tensor.cuda() for tensor in vectors(d=13)), backend="flex")


@pytest.mark.parametrize("keys", [1, 5])
def test_one_entry_for_all_pairs(keys: int) -> None:
    """A compiled function may not return its input."""
    query, key = torch.randn(2, 3, 2, 16), torch.randn(2, 3, keys, 16)
    for allowed in (True, False):
        options: dict[str, Any] = {"mask": torch.tensor(allowed), "bias": torch.tensor(0.5)}
        with torch.no_grad():
            found, wanted = (attend(query, key, key, backend=name, **options) for name in ("flex", "reference"))
        torch.testing.assert_close(found, wanted)
