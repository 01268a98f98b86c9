"""Statistics of the attention weights against hand-worked values and the map of all weights in float64."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._inductor.exc import InvalidCxxCompiler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from vit.attention import masks, statistics
from vit.attention.backends import AttentionOptions
from vit.attention.core import DOT_PRODUCT, attention_weights
from vit.attention.scores import Additive, Constant, Cosine, GaussianKernel
from vit.attention.statistics import AttentionStatistics, attention_statistics
from vit.attention.statistics import streamed as tiles
from vit.attention.statistics.spec import RawStatistics, StatisticsSpec

B, H, G, N, M, D = 2, 6, 3, 19, 23, 11


def grid(height: int, width: int, patch: float = 1.0) -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack((rows, columns), dim=-1).reshape(-1, 2) * patch


def known(quantity: Tensor | None) -> Tensor:
    assert quantity is not None
    return quantity


def with_prefix(places: Tensor, count: int) -> Tensor:
    return torch.cat((torch.full((count, places.shape[1]), torch.nan), places.float()))


def materialised(
    query: Tensor,
    key: Tensor,
    distances: Tensor | None = None,
    key_groups: dict[str, Tensor] | None = None,
    cross: bool = False,
    **attention: Any,
) -> AttentionStatistics:
    """The same from the map of all weights, in float64; `distances` has NaN where there is none."""
    weights = attention_weights(query.double(), key.double(), **attention)
    n, m = weights.shape[-2:]
    placed = None if distances is None else ~distances.isnan()
    return AttentionStatistics(
        entropy=torch.special.entr(weights).sum(dim=-1),
        mass={name: weights[..., group].sum(dim=-1) for name, group in (key_groups or {}).items()},
        self_mass=None if cross else weights.diagonal(m - n, dim1=-2, dim2=-1),
        distance=None if distances is None else (weights * distances.double().nan_to_num()).sum(dim=-1),
        placed_mass=None if placed is None else (weights * placed).sum(dim=-1),
    )


def assert_same(ours: AttentionStatistics, theirs: AttentionStatistics, tolerance: float = 2e-6) -> None:
    """Relative to the largest number, as all of them are sums over keys."""
    assert list(ours.mass) == list(theirs.mass)
    fields = ("entropy", "self_mass", "distance", "placed_mass")
    pairs = [(getattr(ours, name), getattr(theirs, name)) for name in fields]
    for mine, other in pairs + [(ours.mass[name], theirs.mass[name]) for name in ours.mass]:
        assert (mine is None) == (other is None)
        if mine is not None:
            assert not mine.isnan().any()
            atol = tolerance * max(1.0, float(other.abs().max()) if other.numel() else 0.0)
            torch.testing.assert_close(mine.double(), other, atol=atol, rtol=0)


@dataclass
class Case:
    """Self-attention of the last n of m tokens, or cross-attention; two tokens have no position."""

    n: int = N
    m: int = M
    groups: int = G
    dtype: torch.dtype = torch.float32
    width: int = D
    cross: bool = False
    table: bool = False
    mask: str = "none"
    bias: bool = False

    def arguments(self, seed: int = 0) -> tuple[tuple[Tensor, Tensor], dict[str, Any], dict[str, Any]]:
        torch.manual_seed(seed)
        n, m = self.n, self.m
        query, key = torch.randn(B, H, n, self.width) * 2, torch.randn(B, self.groups, m, self.width)
        bias = torch.randn(H, n, m) if self.bias else None
        attention = {"mask": some_mask(self.mask, n, m), "bias": bias}
        groups = {"first": torch.arange(m) < 1, "thirds": torch.arange(m) % 3 == 1, "none": torch.zeros(m) > 0}
        keys = with_prefix(torch.rand(m - 2, 3) * 9, 2)
        queries = torch.rand(n, 3) * 9 if self.cross else keys[m - n :]
        table = (queries[:, None].double() - keys).square().sum(-1).sqrt()
        space = {"coordinates": keys, "query_coordinates": queries} if self.cross else {"coordinates": keys}
        space = {"distances": table} if self.table else space
        shared = {"key_groups": groups, "cross": self.cross, **attention}
        return (query.to(self.dtype), key.to(self.dtype)), {**shared, **space}, {**shared, "distances": table}

    def check(self, device: str = "cpu", tolerance: float = 2e-6, **options: Any) -> None:
        vectors, ours, theirs = self.arguments()
        moved: list[dict[str, Any]] = [
            {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in a.items()} for a in (ours, theirs)
        ]
        for arguments in moved:
            arguments["key_groups"] = {name: group.to(device) for name, group in arguments["key_groups"].items()}
        query, key = (vector.to(device) for vector in vectors)
        assert_same(
            attention_statistics(query, key, **moved[0], **options), materialised(query, key, **moved[1]), tolerance
        )


def some_mask(kind: str, n: int, m: int) -> Tensor | None:
    if kind == "none":
        return None
    segments = torch.arange(m).expand(B, m) // 5
    dead = torch.rand(B, 1, n, m) > 0.6
    dead[0, 0, n // 2], dead[1, 0, 0] = False, False
    return {
        "padding": masks.padding(torch.tensor([m - 4, 0]), m),
        "padding of rows": masks.padding(torch.randint(0, m, (B, n)), m),
        "causal": masks.causal(n, m),
        "window": masks.window(n, 2, m),
        "segments": masks.segments(torch.arange(n).expand(B, n) // 5, segments) & masks.causal(n, m),
        "dead rows": dead,
        "one a query": torch.rand(B, H, n, 1) > 0.5,
        "nothing": torch.tensor(False),
    }[kind]


MASKS = ["none", "padding", "padding of rows", "causal", "window", "segments", "dead rows", "one a query", "nothing"]


# ------------------------------------------------------------------ by hand


@pytest.mark.parametrize("side", [14, 3])
def test_uniform_attention_on_a_grid(side: int) -> None:
    """`shared/reference/RESULTS.md` has 116.4922 and 117.0896 for 14×14 patches of 16 pixels; ln 196 nats."""
    places = grid(side, side, patch=16)
    count = len(places)
    zeros = torch.zeros(1, 1, count, 8)
    found = attention_statistics(zeros, zeros, coordinates=places, key_groups={"row": torch.arange(count) < side})
    torch.testing.assert_close(found.entropy, torch.full((1, 1, count), math.log(count)))
    torch.testing.assert_close(found.self_mass, torch.full((1, 1, count), 1 / count))
    torch.testing.assert_close(found.mass["row"], torch.full((1, 1, count), side / count))
    if side == 14:
        assert round(known(found.distance).double().mean().item(), 4) == 116.4922
        assert round(found.renormalised_distance(without_self=True).double().mean().item(), 4) == 117.0896
    else:  # the middle one of nine patches has four neighbours beside it and four across
        assert known(found.distance)[0, 0, 4].item() == pytest.approx(16 * 4 * (1 + math.sqrt(2)) / 9)


def test_a_class_token_has_no_position() -> None:
    places = grid(14, 14, patch=16)
    zeros = torch.zeros(1, 1, 197, 8)
    cls = torch.arange(197) < 1
    found = attention_statistics(zeros, zeros, coordinates=with_prefix(places, 1), key_groups={"cls": cls})
    patches = known(found.distance)[..., 1:].double().mean().item()
    assert patches == pytest.approx(116.4922 * 196 / 197, abs=1e-4)
    assert found.renormalised_distance()[..., 1:].double().mean().item() == pytest.approx(116.4922, abs=1e-4)
    without_self = found.renormalised_distance(without_self=True)[..., 1:]
    assert without_self.double().mean().item() == pytest.approx(117.0896, abs=1e-4)
    assert known(found.distance)[..., 0].item() == known(found.placed_mass)[..., 0].item() == 0.0
    assert found.renormalised_distance()[..., 0].item() == 0.0
    total = (found.mass["cls"] + known(found.placed_mass))[..., 1:]
    torch.testing.assert_close(total, torch.ones_like(total))


def test_two_keys_by_hand() -> None:
    """Scores 0 and ln 3 are weights of ¼ and ¾."""
    query, key = torch.ones(1, 1, 2, 1), torch.tensor([0.0, math.log(3)]).reshape(1, 1, 2, 1)
    found = attention_statistics(query, key, coordinates=torch.tensor([[0.0], [8.0]]))
    torch.testing.assert_close(known(found.self_mass)[0, 0], torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(known(found.distance)[0, 0], torch.tensor([6.0, 2.0]))
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    torch.testing.assert_close(found.entropy[0, 0], torch.tensor([entropy, entropy]))
    torch.testing.assert_close(found.renormalised_distance(without_self=True)[0, 0], torch.tensor([8.0, 8.0]))


def test_attention_to_oneself_alone_has_no_entropy() -> None:
    query = torch.eye(7)[None, None] * 1000
    found = attention_statistics(query, query, coordinates=grid(1, 7))
    assert found.entropy.tolist() == known(found.distance).tolist() == torch.zeros(1, 1, 7).tolist()
    assert known(found.self_mass).tolist() == torch.ones(1, 1, 7).tolist()


# ------------------------------------------------------------------ against the map


def test_the_lowest_number_of_a_type_may_stand_for_a_mask() -> None:
    query, key = torch.randn(2, 1, 2, 5, 4).unbind()
    masked = torch.tensor([False, True, False, True, False])
    bias = torch.zeros(5, 5).masked_fill_(masked, torch.finfo(torch.float32).min)
    found = attention_statistics(query, key, bias=bias)
    expected = attention_statistics(query, key, mask=~masked.expand(5, 5))
    torch.testing.assert_close(found.entropy, expected.entropy)


@pytest.mark.parametrize("groups", [H, G, 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_biases_and_grouped_queries(mask: str, bias: bool, groups: int) -> None:
    Case(mask=mask, bias=bias, groups=groups).check()


@pytest.mark.parametrize("block_size", [1, 7, 1000])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("table", [False, True])
def test_block_sizes_cross_attention_and_tables(table: bool, cross: bool, block_size: int) -> None:
    n = 29 if cross else N
    Case(n=n, cross=cross, table=table, mask="one a query").check(block_size=block_size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_summed_in_float32(dtype: torch.dtype) -> None:
    case = Case(dtype=dtype, mask="dead rows", bias=True)
    case.check()
    vectors, arguments, _ = case.arguments()
    assert attention_statistics(*vectors, **arguments).entropy.dtype == torch.float32


def test_float64_stays() -> None:
    Case(dtype=torch.float64, mask="dead rows", bias=True).check(tolerance=1e-13)


@pytest.mark.parametrize("score", [Cosine(), Constant(), GaussianKernel(torch.rand(M))], ids=lambda s: type(s).__name__)
def test_scores_without_weights(score: Constant | Cosine | GaussianKernel) -> None:
    vectors, ours, theirs = Case(mask="dead rows").arguments()
    assert_same(
        attention_statistics(*vectors, **ours, score=score), materialised(*vectors, **theirs, score=score), 5e-6
    )


@pytest.mark.parametrize("key_width", [D, 7])
def test_additive_score(key_width: int) -> None:
    (query, key), ours, theirs = Case(mask="dead rows").arguments()
    score, exact = (Additive(D, key_width, 5).requires_grad_(False) for _ in range(2))
    exact.double().load_state_dict(score.state_dict())
    key = key[..., :key_width]
    expected = materialised(query, key, **theirs, score=exact)
    assert_same(attention_statistics(query, key, **ours, score=score), expected, 5e-6)
    assert_same(attention_statistics(query, key, **ours, score=score, block_size=2), expected, 5e-6)


def test_many_tiles_of_one_sample_and_of_many_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """More scores than a tile has, so that rows and heads are split where no size divides another."""
    monkeypatch.setattr(tiles, "TILE", 5000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # as many as the sizes below are for
    torch.manual_seed(0)
    for shape, rows_and_heads in (((1, 3, 211, 13), (47, 1)), ((2, 7, 53, 3), (53, 3))):
        assert tiles._tile_size(shape[1], shape[2], shape[2], None, limit=10000) == rows_and_heads
        query, key, places = torch.randn(shape), torch.randn(shape), torch.rand(shape[2], 2)
        table = (places[:, None].double() - places).square().sum(-1).sqrt()
        ours = attention_statistics(query, key, coordinates=places)
        assert_same(ours, materialised(query, key, distances=table), 5e-6)


@pytest.mark.parametrize(
    ("limit", "block_size", "rows_and_heads"),
    [(5000, None, (5, 1)), (20000, None, (20, 1)), (5000, 3, (3, 1)), (20000, 3, (3, 6))],
)
def test_a_tile_grows_with_its_limit(limit: int, block_size: int | None, rows_and_heads: tuple[int, int]) -> None:
    assert tiles._tile_size(8, 1000, 1000, block_size, limit) == rows_and_heads


@pytest.mark.parametrize(("device", "threads"), [("cpu", 3), ("meta", 1)])
def test_only_cpu_threads_count(device: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def see(*sizes: int | None) -> None:
        raise Seen(sizes[-1])

    monkeypatch.setattr(tiles, "_tile_size", see)
    monkeypatch.setattr(tiles, "TILE", 10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    query = torch.zeros(1, 2, 5, 4, device=device)
    options = AttentionOptions(score=DOT_PRODUCT, scale=None, mask=None, bias=None)
    spec = StatisticsSpec(
        options=options, names=(), sets=query.new_zeros(0, 5), space=None, query_offset=None, block_size=None
    )
    with pytest.raises(Seen, match=f"^{10 * threads}$"):
        tiles.streamed(query, query, spec)


@pytest.mark.parametrize(("n", "m"), [(0, 3), (0, 0)])
def test_no_queries_or_keys(n: int, m: int) -> None:
    found = attention_statistics(torch.zeros(1, 2, n, 3), torch.zeros(1, 2, m, 3), coordinates=torch.zeros(m, 2))
    assert found.entropy.shape == known(found.distance).shape == (1, 2, n)
    found = attention_statistics(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 0, 3), cross=True)
    assert found.entropy.tolist() == torch.zeros(1, 2, 3).tolist()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**16), st.integers(1, 50))
def test_bounds_hold_and_keys_may_be_permuted(h: int, n: int, m: int, seed: int, block_size: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, h, n, 5, generator=generator) * 3
    key, places = torch.randn(1, h, m, 5, generator=generator), torch.rand(m, 2, generator=generator)
    mask = torch.rand(n, m, generator=generator) > 0.3
    order = torch.randperm(m, generator=generator)
    of_queries = torch.rand(n, 2, generator=generator)
    found, shuffled = (
        attention_statistics(
            query,
            key[:, :, ordered],
            coordinates=places[ordered],
            query_coordinates=of_queries,
            cross=True,
            mask=mask[:, ordered],
            block_size=size,
        )
        for ordered, size in ((torch.arange(m), block_size), (order, None))
    )
    allowed = mask.sum(dim=-1)
    assert (found.entropy >= 0).all()
    assert (found.entropy <= allowed.clamp(min=1).log() + 1e-5).all()
    assert (known(found.distance) <= math.sqrt(2) + 1e-5).all()
    torch.testing.assert_close(found.placed_mass, (allowed > 0).float().expand(1, h, n))
    torch.testing.assert_close(found.entropy, shuffled.entropy, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.distance, shuffled.distance, atol=1e-5, rtol=0)


# ------------------------------------------------------------------ compiled


COMPILED = [
    Case(),
    Case(groups=1, mask="dead rows", bias=True),
    Case(cross=True, table=True, mask="padding"),
    Case(n=1, m=40, dtype=torch.bfloat16),
]


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_the_compiled_loop_sums_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function as it is, uncompiled: what the compiler makes of it is tested below."""
    monkeypatch.setattr(tiles, "_compiled_sums", lambda: tiles._fused_sums)
    case.check(backend="compiled", tolerance=2e-6 if case.dtype == torch.float32 else 2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED, ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_the_compiler_makes_of_it_sums_the_same(case: Case) -> None:
    for block_size in (None, 3):
        case.check(backend="compiled", block_size=block_size, tolerance=2e-6 if case.dtype == torch.float32 else 2e-2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_more_programs_than_torch_allows_by_default() -> None:
    """Each number of groups is one; beyond the limit a whole program is refused by torch."""
    (query, key), ours, theirs = Case().arguments()
    for count in range(11):
        groups = {str(name): torch.arange(M) % 11 == name for name in range(count)}
        found = attention_statistics(query, key, **{**ours, "key_groups": groups}, backend="compiled")
        assert_same(found, materialised(query, key, **{**theirs, "key_groups": groups}))


def test_compiled_is_refused_on_other_devices() -> None:
    query = torch.zeros(1, 2, 5, 4, device="meta")
    options = AttentionOptions(score=DOT_PRODUCT, scale=None, mask=None, bias=None)
    spec = StatisticsSpec(
        options=options, names=(), sets=query.new_zeros(0, 5), space=None, query_offset=None, block_size=None
    )
    with pytest.raises(
        ValueError, match="backend: 'compiled' is not valid: it was made for the CPU, not for meta; use"
    ):
        tiles.compiled(query, query, spec)


@pytest.mark.parametrize("error", [InvalidCxxCompiler, FileNotFoundError])
def test_compiled_is_refused_without_a_compiler(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """The second: `CXX` names a program that is not there."""

    def missing() -> None:
        raise error

    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", missing)
    query = torch.zeros(1, 2, 5, 4)
    with pytest.raises(ValueError, match=r"'compiled' is not valid: it needs a C\+\+ compiler, and none was found"):
        attention_statistics(query, query, backend="compiled")


@pytest.mark.slow  # compiles
def test_compiled_is_refused_beyond_its_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "_MOST_PROGRAMS", 1)
    torch._dynamo.reset()
    query = torch.zeros(1, 2, 200, 4)
    half = {"half": torch.arange(200) < 100}  # another number of sums over all keys
    attention_statistics(query, query, backend="compiled")
    with pytest.raises(
        ValueError, match="'compiled' is not valid: the calls of this process need more than 1 programs"
    ):
        attention_statistics(query, query, key_groups=half, backend="compiled")
    torch._dynamo.reset()


def test_compiled_is_refused_where_operations_are_counted() -> None:
    query = torch.zeros(1, 2, 5, 4)
    message = "'compiled' is not valid: torch compiles nothing inside a TorchDispatchMode, .*; use 'streamed'"
    with FlopCounterMode(display=False), pytest.raises(ValueError, match=message):
        attention_statistics(query, query, backend="compiled")


def test_compiled_names_a_compiler_that_fails(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\necho "omp.h:1: fatal error: none here" >&2\n[ "$1" = --version ]\n')
    compiler.chmod(0o755)
    code = """
import torch
from vit.attention import attention_statistics
query = torch.zeros(1, 2, 5, 4)
attention_statistics(query, query, backend="compiled")
"""
    environment = {**os.environ, "CXX": str(compiler), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    message = f"backend: 'compiled' is not valid: {compiler} failed: omp.h:1: fatal error: none here; use 'streamed'"
    assert ended.stderr.rstrip().splitlines()[-1].endswith(message)


# ------------------------------------------------------------------ what holds besides


def test_answers_are_detached_and_autocast_changes_nothing() -> None:
    (query, key), arguments, _ = Case().arguments()
    query.requires_grad_()
    expected = attention_statistics(query, key, **arguments)
    with torch.autocast("cpu", torch.bfloat16):
        found = attention_statistics(query, key, **arguments)
    assert not found.entropy.requires_grad
    assert not known(found.distance).requires_grad
    assert torch.equal(known(found.distance), known(expected.distance))


def test_each_argument_changes_its_statistic() -> None:
    (query, key), arguments, _ = Case().arguments()
    plain = attention_statistics(query, key, **arguments)
    assert attention_statistics(query, key).distance is None
    assert attention_statistics(query, key).mass == {}
    assert not torch.equal(attention_statistics(query, key, **{**arguments, "scale": 0.1}).entropy, plain.entropy)
    far = {**arguments, "coordinates": arguments["coordinates"] * 2}
    torch.testing.assert_close(attention_statistics(query, key, **far).distance, known(plain.distance) * 2)


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that torch makes."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Any, types: tuple[()], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Tensor | int | list[Tensor]:
        out = func(*args, **(kwargs or {}))
        tensors = [tensor for tensor in tree_leaves(out) if isinstance(tensor, torch.Tensor)]
        self.numbers = max([self.numbers, *(tensor.numel() for tensor in tensors)])
        return out


def test_memory_is_linear_in_tokens() -> None:
    sizes = []
    for count in (401, 802):
        vectors, places = torch.randn(2, 1, 2, count, 4), torch.rand(count, 2)
        with Largest() as largest:
            attention_statistics(*vectors, coordinates=places, mask=torch.ones(count) > 0, block_size=3)
        sizes.append(largest.numbers)
    assert sizes[1] == 2 * sizes[0]


VECTORS = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 4, 2)
PLACES = torch.zeros(4, 2)
INFINITE = torch.full((4, 2), torch.inf)
MIXED = torch.tensor([[torch.nan, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coordinates": PLACES[:3]}, r"coordinates: \(3, 2\) is not valid"),
        ({"coordinates": INFINITE}, "coordinates: inf is not valid"),
        ({"coordinates": PLACES, "distances": MIXED}, "coordinates or distances, not both"),
        ({"distances": PLACES}, r"distances: \(4, 2\) is not valid: it must be \(queries, keys\), \(3, 4\)"),
        ({"distances": MIXED}, "full row or column"),
        ({"distances": MIXED.nan_to_num(torch.inf) / 0}, "must be finite, or NaN where there is none"),
        ({"query_coordinates": PLACES[:3]}, "query_coordinates"),
        ({"coordinates": PLACES, "query_coordinates": PLACES[:3]}, "effect only with"),
        ({"coordinates": PLACES, "cross": True}, "query_coordinates: None"),
        ({"coordinates": PLACES, "cross": True, "query_coordinates": PLACES}, "with 3 tokens"),
        ({"coordinates": PLACES, "cross": True, "query_coordinates": PLACES[:3, :1]}, "as many columns"),
        ({"key_groups": {"cls": torch.ones(4)}}, r"key_groups.cls: .* must be boolean"),
        ({"key_groups": {"cls": torch.ones(3, dtype=torch.bool)}}, "one per key of 4"),
        ({"block_size": 0}, "block_size: 0 is not valid"),
        ({"backend": "tritn"}, "did you mean 'triton'"),
        ({"mask": torch.ones(4)}, "mask: torch.float32 is not valid"),
        ({"bias": torch.full((1, 1), float("-inf"))}, "bias: infinite or NaN entries are not valid"),
        ({"bias": torch.ones(2, 4)}, r"bias: shape \(2, 4\) is not valid"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention_statistics(*VECTORS, **arguments)


def test_on_cuda_auto_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[str] = []

    def spy(name: str, query: Tensor, key: Tensor, spec: StatisticsSpec) -> RawStatistics:
        answered.append(name)
        return tiles.streamed(query, key, spec)

    spies = {name: partial(spy, name) for name in statistics.STATISTICS_BACKENDS}
    monkeypatch.setattr(statistics, "STATISTICS_BACKENDS", spies)
    with FakeTensorMode():  # tensors of a device that need not be there
        query, key = (torch.zeros(vectors.shape, device="cuda") for vectors in VECTORS)
        for backend in ("auto", "streamed", "triton"):
            attention_statistics(query, key, backend=backend)
    assert answered == ["streamed", "streamed", "triton"]


def test_more_queries_than_keys_need_cross() -> None:
    query, key = VECTORS[1], VECTORS[0]
    with pytest.raises(ValueError, match="4 queries are not among 3 keys"):
        attention_statistics(query, key)
    found = attention_statistics(query, key, cross=True)
    assert found.self_mass is None
    with pytest.raises(ValueError, match="coordinates: None"):
        found.renormalised_distance()
    found = attention_statistics(query, key, cross=True, distances=torch.zeros(4, 3))
    with pytest.raises(ValueError, match="without_self"):
        found.renormalised_distance(without_self=True)


def test_a_tokens_distance_to_itself_in_a_table_is_left_out_with_it() -> None:
    query, key = torch.randn(2, 1, 2, 3, 4).unbind()
    found = attention_statistics(query, key, distances=torch.full((3, 3), 5.0))
    torch.testing.assert_close(found.renormalised_distance(), torch.full((1, 2, 3), 5.0))
    torch.testing.assert_close(found.renormalised_distance(without_self=True), torch.full((1, 2, 3), 5.0))


@pytest.mark.parametrize("backend", ["streamed", "compiled"])
def test_scores_that_are_not_numbers_are_no_entropy_of_zero(backend: str) -> None:
    query, key = torch.randn(2, 1, 2, 3, 4).unbind()
    query[0, 0] = math.nan
    found = attention_statistics(query, key, backend=backend)
    assert found.entropy[0, 0].isnan().all()
    assert not found.entropy[0, 1].isnan().any()


@pytest.mark.parametrize("scale", [math.nan, math.inf, "x"])
def test_a_scale_that_is_no_finite_number_is_refused(scale: Any) -> None:
    query, key = torch.randn(2, 1, 2, 3, 4).unbind()
    for compute in (attention_statistics, attention_weights):
        with pytest.raises(ValueError, match=r"^scale: .* is not valid: it is a finite number"):
            compute(query, key, scale=scale)
