"""Restricted self-attention: equal to the window mask, at a cost linear in the tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vit.attention import local
from vit.attention.core import attend
from vit.attention.local import attend_locally
from vit.attention.masks import window


def draw(b: int, h: int, g: int, n: int, d: int = 3, v: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    shapes = ((b, h, n, d), (b, g, n, d), (b, g, n, v))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@settings(max_examples=30, deadline=None)
@given(
    b=st.integers(1, 3), g=st.integers(1, 2), repeats=st.integers(1, 2), n=st.integers(1, 23), radius=st.integers(1, 29)
)
def test_it_is_attention_under_the_windows_mask(b: int, g: int, repeats: int, n: int, radius: int) -> None:
    ours, theirs = draw(b, g * repeats, g, n), draw(b, g * repeats, g, n)
    answer = attend_locally(*ours, radius=radius)
    wanted = attend(*theirs, mask=window(n, radius), backend="reference")
    torch.testing.assert_close(answer, wanted)
    answer.square().sum().backward()
    wanted.square().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_no_sequences_have_no_vectors() -> None:
    assert attend_locally(*torch.zeros(3, 0, 2, 7, 4), radius=2).shape == (0, 2, 7, 4)


def test_distant_keys_are_not_read() -> None:
    query, key, value = (tensor.detach() for tensor in draw(1, 1, 1, 13))
    key[:, :, 8:], value[:, :, 8:] = float("nan"), float("nan")
    assert attend_locally(query, key, value, radius=2)[:, :, :2].isfinite().all()


def test_the_weights_grow_with_the_tokens_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def count(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        computed.append(query.shape[0] * query.shape[2] * key.shape[2])
        return attend(query, key, value, **options)

    monkeypatch.setattr(local, "attend", count)
    for n in (20, 40, 80):
        attend_locally(*draw(1, 1, 1, n), radius=5)
    assert computed == [20 * 15, 40 * 15, 80 * 15]


def test_a_radius_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="radius: 0 is not valid: it must be at least 1"):
        attend_locally(*draw(1, 1, 1, 5), radius=0)


def test_a_radius_beyond_the_sequence_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = torch.randn(3, 1, 2, 4, 8).unbind()
    widths: list[int] = []
    monkeypatch.setattr(local, "attend", lambda *args, **kw: widths.append(args[1].shape[2]) or attend(*args, **kw))
    torch.testing.assert_close(
        attend_locally(query, key, value, radius=1000), attend_locally(query, key, value, radius=4)
    )
    assert widths[0] == widths[1]


def test_wrong_lengths_and_radii_are_named_as_they_were_given() -> None:
    query, key, value = torch.randn(3, 1, 2, 4, 8).unbind()
    with pytest.raises(
        ValueError, match=r"^key: \(1, 2, 3, 8\) is not valid: it must have as many tokens as the query, 4"
    ):
        attend_locally(query, key[:, :, :3], value[:, :, :3], radius=1)
    with pytest.raises(ValueError, match=r"^query: .* at least one token"):
        attend_locally(query[:, :, :0], key[:, :, :0], value[:, :, :0], radius=1)
    with pytest.raises(ValueError, match=r"^radius: 2\.0 is not valid"):
        attend_locally(query, key, value, radius=2.0)  # type: ignore[arg-type]
