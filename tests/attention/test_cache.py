"""The cache of keys and values: its content, and decoding with it equals one pass (row 11)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vit.attention import masks
from vit.attention.cache import FIRST_CAPACITY, KeyValueCache
from vit.attention.multihead import SelfAttention

B, N, C, H = 3, 7, 12, 3


def decode(attention: SelfAttention, tokens: Tensor, chunks: list[int]) -> Tensor:
    cache, outputs = KeyValueCache(), []
    for chunk in tokens.split(chunks, dim=1):
        total = cache.length + chunk.shape[1]
        outputs.append(attention(chunk, mask=masks.causal(chunk.shape[1], total), cache=cache))
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("chunks", [[1] * N, [3, 1, 2, 1], [N]])
@torch.no_grad()
def test_incremental_equals_one_pass(dtype: torch.dtype, tolerance: float, chunks: list[int]) -> None:
    attention, tokens = SelfAttention(C, H).to(dtype), torch.randn(B, N, C, dtype=dtype)
    whole = attention(tokens, mask=masks.causal(N))
    torch.testing.assert_close(decode(attention, tokens, chunks), whole, atol=tolerance, rtol=0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 3))
def test_tokens_are_kept_in_order(lengths: list[int], groups: int) -> None:
    keys = [torch.randn(2, groups, length, 3) for length in lengths]
    values = [torch.randn(2, groups, length, 5) for length in lengths]
    cache = KeyValueCache()
    for key, value in zip(keys, values, strict=True):
        all_keys, all_values = cache.append(key, value)
    assert torch.equal(all_keys, torch.cat(keys, dim=2))
    assert torch.equal(all_values, torch.cat(values, dim=2))
    assert cache.length == sum(lengths)


def test_rows_may_be_swapped_repeated_and_left_out() -> None:
    keys, values = torch.randn(B, 2, 4, 3), torch.randn(B, 2, 4, 5)
    newest = torch.randn(4, 2, 1, 3), torch.randn(4, 2, 1, 5)
    cache, rows = KeyValueCache(), torch.tensor([2, 0, 0, 2])
    cache.append(keys, values)
    cache.reorder(rows)
    all_keys, all_values = cache.append(*newest)
    assert torch.equal(all_keys, torch.cat((keys[rows], newest[0]), dim=2))
    assert torch.equal(all_values, torch.cat((values[rows], newest[1]), dim=2))


def test_an_empty_cache_has_nothing_to_reorder() -> None:
    cache = KeyValueCache()
    cache.reorder(torch.tensor([1, 0]))
    assert cache.length == 0


def test_the_buffer_doubles_instead_of_growing_by_token() -> None:
    cache, places = KeyValueCache(), set()
    for _ in range(8 * FIRST_CAPACITY):
        keys, _ = cache.append(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
        places.add(keys.untyped_storage().nbytes())
    assert sorted(places) == [4 * FIRST_CAPACITY * factor for factor in (1, 2, 4, 8)]


def test_gradients_are_refused() -> None:
    attention = SelfAttention(C, H)
    with pytest.raises(ValueError, match=r"cache: keys with a gradient are not valid: decode under torch.no_grad"):
        attention(torch.randn(B, 1, C), cache=KeyValueCache())
