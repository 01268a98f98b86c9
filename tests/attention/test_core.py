"""Attention against hand-worked values, torch's own attention, and itself in float64."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vit.attention import masks
from vit.attention.backends import BACKENDS
from vit.attention.core import attend, attention_weights
from vit.attention.scores import Constant, Cosine, ScaledDotProduct
from vit.randomness import SampleRandom

B, N, M, H, G, D, V = 2, 5, 7, 6, 3, 11, 13
QUICK = [name for name in BACKENDS if name not in ("flex", "triton")]
"""A kernel takes long to compile, and long in an interpreter: those have files of their own, and the matrix."""
FAST = [name for name in QUICK if name != "reference"]


class Distance:
    """A score that is not an inner product: minus the squared distance."""

    def __call__(self, query: Tensor, key: Tensor, scale: Any) -> Tensor:
        return -(query[:, :, :, None] - key[:, :, None]).square().sum(-1) * (scale or 1.0)


def tensors(dtype: torch.dtype = torch.float32, groups: int = H, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, N, D), (B, groups, M, D), (B, groups, M, V), (H, N, M))
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def some_mask() -> Tensor:
    mask = torch.rand(B, 1, N, M, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[0, 0, 2] = False
    return mask


@pytest.mark.parametrize("backend", QUICK)
def test_one_query_over_identity_keys(backend: str) -> None:
    query, eye = torch.tensor([0.0, math.sqrt(2)]).reshape(1, 1, 1, 2), torch.eye(2)[None, None]
    expected = torch.tensor([1.0, math.e]) / (1 + math.e)
    torch.testing.assert_close(attend(query, eye, eye, backend=backend)[0, 0, 0], expected)


def test_scores_of_112_and_96_at_width_64() -> None:
    query, keys = torch.ones(1, 1, 1, 64), torch.stack((torch.full((64,), 1.75), torch.full((64,), 1.5)))
    weights = attention_weights(query, keys[None, None])
    torch.testing.assert_close(weights[0, 0, 0], torch.tensor([14.0, 12.0]).softmax(0))
    assert [round(w, 2) for w in weights.flatten().tolist()] == [0.88, 0.12]


def test_worked_masked_softmax() -> None:
    scores = torch.tensor(
        [
            [[0.4140, -1.1542, -1.2127, 0.6286], [-0.6033, 0.5189, -1.4756, -0.0650]],
            [[-0.1864, 0.5557, 0.1935, -1.2823], [0.1995, -1.6036, 1.3123, -0.0660]],
        ]
    )
    expected = torch.tensor(
        [[[0.8275, 0.1725, 0, 0], [0.2456, 0.7544, 0, 0]], [[0.2192, 0.4604, 0.3205, 0], [0.2377, 0.0392, 0.7232, 0]]]
    )
    mask = masks.padding(torch.tensor([2, 3]), 4)
    weights = attention_weights(torch.zeros(2, 1, 2, 3), torch.zeros(2, 1, 4, 3), bias=scores[:, None], mask=mask)
    torch.testing.assert_close(weights[:, 0], expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("score", [ScaledDotProduct(), Cosine(), Constant()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("groups", [H, G, 1])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("backend", FAST)
def test_backend_equals_the_reference_in_float64(
    backend: str, with_mask: bool, with_bias: bool, groups: int, score: Constant | Cosine | ScaledDotProduct
) -> None:
    results = []
    for name, dtype in (("reference", torch.float64), (backend, torch.float32)):
        leaves = [t.requires_grad_() for t in tensors(dtype, groups)]
        query, key, value, leaf = leaves
        mask = some_mask() if with_mask else None
        bias = leaf if with_bias else None
        out = attend(query, key, value, mask=mask, bias=bias, score=score, backend=name)
        out.square().sum().backward()
        results.append([out, *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.double(), expected, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["reference", "matmul", "sdpa"])
def test_at_a_scale_of_zero_all_weights_are_equal(backend: str, dtype: torch.dtype) -> None:
    """Products large enough for oneDNN, which writes nothing at a factor of 0."""
    query, key, value = torch.randn(3, 2, 4, 37, 32).to(dtype)
    answer = attend(query, key, value, scale=0.0, backend=backend)
    expected = value.float().mean(dim=2, keepdim=True).expand_as(value)
    torch.testing.assert_close(answer.float(), expected, atol=1e-2, rtol=0)


@pytest.mark.parametrize("backend", ["reference", "matmul"])
def test_in_float16_the_gradient_of_the_keys_is_scaled_before_it_overflows(backend: str) -> None:
    query, key = torch.full((1, 1, 1, 64), 300.0), torch.zeros(1, 1, 2, 64)
    value = torch.stack((torch.ones(64), -torch.ones(64)))[None, None]
    query, key, value = (tensor.half().requires_grad_() for tensor in (query, key, value))
    attend(query, key, value, backend=backend).backward(torch.full((1, 1, 1, 64), 8.0).half())
    # dw = +-512, ds = +-256; times the queries that is 76,800, more than float16 holds, and scaled by 1/8 it is 9,600
    assert key.grad is not None
    torch.testing.assert_close(key.grad[0, 0, :, 0].tolist(), [9600.0, -9600.0])


@pytest.mark.parametrize("autocast", [False, True])
def test_only_products_that_cannot_overflow_are_scaled_afterwards(
    autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled = []
    real = torch.baddbmm
    monkeypatch.setattr(torch, "baddbmm", lambda *given, **options: scaled.append(given) or real(*given, **options))
    query, key, value = torch.randn(3, 1, 2, 5, 8)
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        attend(query, key, value, backend="matmul")
    assert bool(scaled) != autocast


@pytest.mark.parametrize("backend", QUICK)
def test_dead_row_is_zero_in_value_and_gradient(backend: str) -> None:
    leaves = [t.requires_grad_() for t in tensors()]
    query, key, value, bias = leaves
    out = attend(query, key, value, bias=bias, mask=some_mask(), backend=backend)
    assert (out[0, :, 2] == 0).all()
    assert (out[1, :, 2] != 0).any()
    out[0, :, 2].sum().backward()
    assert all(leaf.grad is not None and (leaf.grad == 0).all() for leaf in leaves)


@pytest.mark.parametrize("backend", QUICK)
def test_everything_masked_gives_zeros(backend: str) -> None:
    query, key, value, _ = tensors()
    out = attend(query, key, value, mask=torch.zeros(N, M, dtype=torch.bool), backend=backend)
    assert (out == 0).all()


@pytest.mark.parametrize("backend", QUICK)
def test_masked_keys_do_not_matter(backend: str) -> None:
    query, key, value, _ = tensors()
    mask = masks.padding(torch.tensor([3, M]), M)
    other_key, other_value = key.clone(), value.clone()
    other_key[0, :, 3:], other_value[0, :, 3:] = 50.0, -50.0
    expected = attend(query, key, value, mask=mask, backend=backend)
    torch.testing.assert_close(attend(query, other_key, other_value, mask=mask, backend=backend), expected)


@pytest.mark.parametrize("backend", ["reference", "matmul"])
@pytest.mark.parametrize("learns", [False, True])
def test_a_masked_score_may_be_infinite(backend: str, learns: bool) -> None:
    """Its key's product with the query overflows; the other key alone is attended to, and has the gradient. Torch's
    own attention adds `-inf` to it, and has NaN.
    """
    query, value = torch.full((1, 1, 2, 4), 1e30, requires_grad=learns), torch.randn(1, 1, 2, 3, requires_grad=learns)
    key = torch.stack((torch.full((4,), 1e-30), torch.full((4,), 1e30)))[None, None].requires_grad_(learns)
    mask = torch.tensor([True, False]).expand(1, 1, 2, 2)
    attended = attend(query, key, value, mask=mask, backend=backend)
    torch.testing.assert_close(attended, value[:, :, :1].expand(1, 1, 2, 3))
    if learns:
        gradients = torch.autograd.grad(attended.sum(), (key, value))
        torch.testing.assert_close(gradients, (torch.zeros(1, 1, 2, 4), torch.tensor([[[[2.0] * 3, [0.0] * 3]]])))


def test_gradients_of_gradients_under_a_mask() -> None:
    vectors = [tensor[:1, :2, :3].requires_grad_() for tensor in tensors(torch.float64)[:3]]
    mask = some_mask()[:1, :, :3, :3]

    def run(*vectors: Tensor) -> Tensor:
        return attend(*vectors, mask=mask, backend="matmul")

    assert torch.autograd.gradcheck(run, vectors)
    assert torch.autograd.gradgradcheck(run, vectors)


def test_hiding_scores_without_a_bias_costs_no_copy_of_their_gradient() -> None:
    """As a view that autograd knew would, when it is written into."""
    vectors = [tensor.requires_grad_() for tensor in tensors()[:3]]
    waiting: list[Any] = [attend(*vectors, mask=some_mask(), backend="matmul").grad_fn]
    met = set()
    while waiting:
        node = waiting.pop()
        met.add(node.name())
        waiting.extend(before for before, _ in node.next_functions if before is not None)
    assert "SoftmaxBackward0" in met
    assert not met & {"AsStridedBackward0", "CopySlices"}


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.bfloat16, 0.1)])
def test_compiled_gradients_under_a_mask(with_bias: bool, dtype: torch.dtype, tolerance: float) -> None:
    """`matmul` masks scores hidden from autograd; the compiler must neither drop that nor add a gradient."""
    mask = some_mask()

    def run(*leaves: Tensor, backend: str = "matmul") -> Tensor:
        return attend(*leaves[:3], bias=leaves[3] if with_bias else None, mask=mask, backend=backend)

    leaves = [tensor.requires_grad_() for tensor in tensors(dtype)[: 3 + with_bias]]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    attended, expected = (
        torch.compile(run, backend="aot_eager", fullgraph=True)(*leaves),
        run(*exact, backend="reference"),
    )
    gradient = torch.randn(expected.shape, dtype=torch.float64)
    found = torch.autograd.grad(attended, leaves, gradient.to(dtype))
    wanted = torch.autograd.grad(expected, exact, gradient)
    for mine, right in zip((attended, *found), (expected, *wanted), strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", QUICK)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_equal_to_torch(backend: str, scale: float | None) -> None:
    query, key, value, bias = tensors()
    expected = scaled_dot_product_attention(query, key, value, attn_mask=bias[None].expand(B, -1, -1, -1), scale=scale)
    torch.testing.assert_close(attend(query, key, value, bias=bias, scale=scale, backend=backend), expected)


@pytest.mark.parametrize("backend", QUICK)
def test_permuting_keys_and_queries(backend: str) -> None:
    query, key, value, _ = tensors()
    keys, queries = torch.randperm(M), torch.randperm(N)
    expected = attend(query, key, value, backend=backend)[:, :, queries]
    torch.testing.assert_close(
        attend(query[:, :, queries], key[:, :, keys], value[:, :, keys], backend=backend), expected
    )


def test_results_without_gradients_are_equal_and_inputs_unchanged() -> None:
    inputs = tensors()
    copies = [t.clone() for t in inputs]
    query, key, value, bias = inputs
    with torch.no_grad():
        out = attend(query, key, value, bias=bias, mask=some_mask(), backend="matmul")
    torch.testing.assert_close(out, attend(query, key, value, bias=bias, mask=some_mask(), backend="reference"))
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))


@pytest.mark.parametrize("backend", ["reference", "matmul", "auto"])
def test_dropout_from_rng_depends_on_the_sample_alone(backend: str) -> None:
    query, key, value, _ = tensors()
    rng = SampleRandom.at(3, 0, torch.arange(B))
    whole = attend(query, key, value, dropout=0.5, rng=rng, backend=backend)
    second = attend(query[1:], key[1:], value[1:], dropout=0.5, rng=SampleRandom(rng.state[1:]), backend=backend)
    torch.testing.assert_close(whole[1:], second)
    assert not torch.allclose(whole, attend(query, key, value))
    other = attend(query, key, value, dropout=0.5, rng=SampleRandom.at(4, 0, torch.arange(B)), backend=backend)
    assert not torch.allclose(whole, other)


@pytest.mark.parametrize("backend", QUICK)
def test_dropout_keeps_the_mean(backend: str) -> None:
    query, key, value = torch.zeros(1, 1, 2000, 8), torch.zeros(1, 1, 5, 8), torch.ones(1, 1, 5, 8)
    torch.manual_seed(0)
    out = attend(query, key, value, dropout=0.3, backend=backend)
    assert abs(out.mean().item() - 1) < 0.03
    assert out.std() > 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "sdpa", "dropout": 0.1, "rng": "rng"}, "backend: 'sdpa' is not valid.*use 'matmul'"),
        (
            {"backend": "sdpa", "score": Distance()},
            "backend: 'sdpa' is not valid: the score Distance is not an inner product",
        ),
        ({"backend": "matmul", "score": Distance()}, "backend: 'matmul' is not valid"),
        ({"backend": "spda"}, "backend: 'spda' is not valid: did you mean 'sdpa'"),
        ({"mask": torch.ones(N, M)}, "mask: torch.float32 is not valid: a mask is boolean"),
        ({"mask": torch.ones(N, M, dtype=torch.int64)}, "mask: torch.int64 is not valid: a mask is boolean"),
        ({"dropout": 1.0}, "dropout: 1.0 is not valid: it must be at least 0 and below 1"),
        ({"dropout": -0.1}, "dropout: -0.1 is not valid"),
        ({"dropout": "a"}, "dropout: 'a' is not valid: it must be a number"),
        ({"dropout": 0.5, "rng": torch.Generator()}, "rng: .* is not valid: it must be a SampleRandom"),
        ({"bias": torch.ones(N, M, dtype=torch.bool)}, "bias: torch.bool is not valid"),
        ({"mask": torch.ones(M, N, dtype=torch.bool)}, "mask: shape .7, 5. is not valid: it must broadcast to b h n m"),
        ({"score": Constant(), "scale": 2.0}, "scale: 2.0 is not valid: the score Constant takes none"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    query, key, value, _ = tensors()
    if options.get("rng") == "rng":
        options = options | {"rng": SampleRandom.at(0, 0, torch.arange(B))}
    with pytest.raises(ValueError, match=message):
        attend(query, key, value, **options)


def test_lengths_are_a_tensor() -> None:
    with pytest.raises(ValueError, match=r"lengths: \[3\] is not valid: it must be "):
        masks.padding([3], 5)  # type: ignore[arg-type]


def test_shapes_that_do_not_fit() -> None:
    query, key, value, _ = tensors(groups=4)
    with pytest.raises(ValueError, match=r"they must be .*, of real numbers, not torch\.int64"):
        attend(query.long(), key, value)
    with pytest.raises(ValueError, match=r"of one type, not torch\.float\d\d, torch\.float16, torch\.float\d\d$"):
        attend(query, key.half(), value)
    query, key, value, _ = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(query, key.bfloat16(), value).shape[:3] == query.shape[:3]
    query, key, value, _ = tensors(groups=4)
    with pytest.raises(ValueError, match="with at least one head, at least one wide"):
        attend(query, key[:, :0], value[:, :0])
    with pytest.raises(ValueError, match=r"g \(4\) must divide h \(6\)"):
        attend(query, key, value)
    with pytest.raises(ValueError, match="must be b h n d, b g m e, b g m v"):
        attend(query, key[:, :, :-1], value)
    with pytest.raises(ValueError, match="with one b"):
        attend(query, key[:1], value[:1])


def test_a_custom_score() -> None:
    query, key, value, _ = tensors()
    expected = (-torch.cdist(query, key).square()).softmax(-1) @ value
    torch.testing.assert_close(attend(query, key, value, score=Distance()), expected, atol=1e-4, rtol=1e-4)


def test_cosine_ignores_lengths_and_constant_averages() -> None:
    query, key, value, _ = tensors()
    expected = attend(query, key, value, score=Cosine())
    torch.testing.assert_close(attend(query * 9, key * 0.1, value, score=Cosine()), expected)
    average = attend(query, key, value, score=Constant())
    torch.testing.assert_close(average, value.mean(2, keepdim=True).expand_as(average))


def test_scores_of_float16_do_not_overflow_before_they_are_scaled() -> None:
    """40² · 64 is beyond float16, an eighth of it is not."""
    query = torch.full((1, 1, 3, 64), 40.0, dtype=torch.float16)
    for backend in ("reference", "matmul", "sdpa"):
        assert attend(query, query, query, backend=backend).isfinite().all()


@pytest.mark.parametrize(("score", "shown"), [("dot", "'dot'"), (ScaledDotProduct, "ScaledDotProduct"), (None, "None")])
def test_a_score_that_is_none_is_one_line(score: object, shown: str) -> None:
    tokens = torch.zeros(1, 1, 2, 4)
    for call in (partial(attend, tokens, tokens, tokens), partial(attention_weights, tokens, tokens)):
        with pytest.raises(ValueError, match=rf"score: {shown} is not valid: it must be one of vit\.attention\.scores"):
            call(score=score)
