"""Greedy and beam search against exhaustive search, and on a model made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from vit.tasks.translation.config import TranslatorConfig
from vit.tasks.translation.search import beam_search, greedy_search
from vit.tasks.translation.translator import build_translator

BOS, EOS = 1, 2
A, B = 0, 3
IMPOSSIBLE = -1e4


class ByHand:
    """Next-token probabilities by what has been said; it counts the rows it was asked about."""

    def __init__(self, table: Callable[..., Any]) -> None:
        self.table = table
        self.rows: list[int] = []

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return source, lengths

    def start(self, memory: tuple[Tensor, Tensor]) -> Said:
        return Said([[] for _ in memory[0]], memory[0])

    def step(self, tokens: Tensor, state: Said) -> tuple[Tensor, Said]:
        self.rows.append(len(tokens))
        for said, token in zip(state.said, tokens.tolist(), strict=True):
            said.append(token)
        logits = torch.full((len(tokens), 4), IMPOSSIBLE)
        for row, said in enumerate(state.said):
            for token, probability in self.table(said[1:], int(state.source[row, 0])).items():
                logits[row, token] = torch.tensor(probability).log()
        return logits, state


class Said:
    def __init__(self, said: list[list[Any]], source: Tensor) -> None:
        self.said = said
        self.source = source

    def reorder(self, rows: Tensor) -> None:
        self.said = [list(self.said[row]) for row in rows.tolist()]
        self.source = self.source[rows]


def trap(said: list[Any], _source: int) -> dict[Any, Any]:
    """A looks better at first, but B ends surely: p(A …) = .6 × .4, p(B) = .4."""
    return {(): {A: 0.6, B: 0.4}, (A,): {A: 0.3, B: 0.3, EOS: 0.4}, (B,): {EOS: 1.0}}.get(tuple(said), {EOS: 1.0})


SOURCE, LENGTHS = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
LIMITS: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_length": 5}


def test_greedy_is_trapped_and_beam_is_not() -> None:
    assert greedy_search(ByHand(trap), SOURCE, LENGTHS, **LIMITS) == [[A]]
    assert beam_search(ByHand(trap), SOURCE, LENGTHS, **LIMITS, beam_size=2, length_penalty=0.0) == [[B]]


def test_the_penalty_makes_longer_sentences_better() -> None:
    def table(said: list[Any], _source: int) -> dict[Any, Any]:
        return {(): {EOS: 0.5, A: 0.5}, (A,): {A: 0.9, B: 0.1}}.get(tuple(said), {EOS: 1.0})

    assert beam_search(ByHand(table), SOURCE, LENGTHS, **LIMITS, beam_size=2, length_penalty=0.0) == [[]]
    assert beam_search(ByHand(table), SOURCE, LENGTHS, **LIMITS, beam_size=2, length_penalty=1.0) == [[A, A]]


def test_a_sentence_leaves_when_nothing_can_come_to_beat_its_best() -> None:
    model = ByHand(lambda said, _source: {EOS: 0.9, A: 0.1} if not said else {A: 0.6, B: 0.4})
    assert beam_search(model, SOURCE, LENGTHS, **LIMITS, beam_size=3, length_penalty=0.0) == [[]]
    assert model.rows == [3]


def count_to_the_source(said: list[Any], source: int) -> dict[Any, Any]:
    """The target is as many A as the source's first token says."""
    return {A: 0.9, B: 0.1} if len(said) < source else {EOS: 0.9, B: 0.1}


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_finished_sentences_leave_and_answers_keep_their_places(search: Callable[..., Any]) -> None:
    model, source = ByHand(count_to_the_source), torch.tensor([[3], [0], [1]])
    answers = search(model, source, torch.ones(3, dtype=torch.int64), **LIMITS)
    assert answers == [[A] * 3, [], [A]]
    width = 1 if search is greedy_search else 4
    assert model.rows[0] == 3 * width
    assert model.rows[-1] == width
    assert len(model.rows) <= 5
    if search is greedy_search:
        assert model.rows == [3, 2, 1, 1]


@pytest.mark.parametrize("search", [greedy_search, beam_search])
def test_what_does_not_end_is_cut(search: Callable[..., Any]) -> None:
    model = ByHand(lambda _said, _source: {A: 0.6, B: 0.4})
    assert search(model, SOURCE, LENGTHS, **LIMITS) == [[A] * 5]
    assert len(model.rows) == 5


def tiny(name: Any, seed: int, vocabulary: int = 4) -> Any:
    torch.manual_seed(seed)
    options: dict[str, Any] = {"num_heads": 2} if name == "transformer" else {}
    config = TranslatorConfig(name=name, width=8, depth=1, tie_output=False, **options)
    model = build_translator(config, source_vocabulary=5, target_vocabulary=vocabulary).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.7)
    return model


def exhaustive(
    model: nn.Module, source: Tensor, lengths: Tensor, max_length: int, length_penalty: float, vocabulary: int = 4
) -> list[list[int]]:
    """The best of all sequences that end within `max_length` tokens, or are cut there."""
    others = [token for token in range(vocabulary) if token != EOS]
    best = []
    for row in range(source.shape[0]):
        candidates = [
            (*said, *end)
            for length in range(max_length + 1)
            for said in itertools.product(others, repeat=length)
            for end in ([()] if length == max_length else [(EOS,)])
        ]
        scores = {}
        for candidate in candidates:
            target = torch.tensor([[BOS, *candidate]])
            logits = model(source[row : row + 1], lengths[row : row + 1], target[:, :-1])
            total = logits.log_softmax(dim=-1)[0].gather(1, target[0, 1:, None]).sum().item()
            scores[candidate] = total / ((5 + len(candidate)) / 6) ** length_penalty
        answer = max(scores, key=scores.__getitem__)
        best.append([token for token in answer if token != EOS])
    return best


@pytest.mark.parametrize("name", ["transformer", "bahdanau", "rnn"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.5])
@torch.no_grad()
def test_a_wide_beam_is_exhaustive_search(name: str, length_penalty: float) -> None:
    model, lengths = tiny(name, seed=3), torch.tensor([3, 1])
    source = torch.randint(5, (2, 3), generator=torch.Generator().manual_seed(0))
    expected = exhaustive(model, source, lengths, 3, length_penalty)
    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_length": 3, "length_penalty": length_penalty}
    assert beam_search(model, source, lengths, beam_size=4**3, **options) == expected


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["transformer", "bahdanau", "rnn"]), st.integers(0, 1000), st.floats(0, 2))
def test_a_beam_of_one_is_greedy(name: str, seed: int, length_penalty: float) -> None:
    model = tiny(name, seed)
    source, lengths = torch.randint(5, (4, 3)), torch.tensor([3, 1, 2, 3])
    expected = greedy_search(model, source, lengths, bos=BOS, eos=EOS, max_length=6)
    options: dict[str, Any] = {"beam_size": 1, "length_penalty": length_penalty}
    assert beam_search(model, source, lengths, bos=BOS, eos=EOS, max_length=6, **options) == expected


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["transformer", "bahdanau"]), st.integers(0, 1000))
def test_a_sentence_does_not_depend_on_its_batch(name: str, seed: int) -> None:
    model, options = tiny(name, seed), {"bos": BOS, "eos": EOS, "max_length": 6, "beam_size": 3}
    source, lengths = torch.randint(5, (3, 3)), torch.tensor([3, 1, 2])
    together = beam_search(model, source, lengths, **options)
    assert together == [
        beam_search(model, source[row : row + 1, : lengths[row]], lengths[row : row + 1], **options)[0]
        for row in range(3)
    ]


@pytest.mark.parametrize("wrong", [{"max_length": 0}, {"beam_size": 0}, {"length_penalty": -1.0}])
def test_settings_of_a_search(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: .* is not valid"):
        beam_search(ByHand(trap), SOURCE, LENGTHS, **LIMITS | wrong)


def test_no_gradient_is_recorded() -> None:
    model = tiny("transformer", 0)
    assert torch.is_grad_enabled()
    assert beam_search(model, SOURCE, LENGTHS, **LIMITS)
