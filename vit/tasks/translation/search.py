"""Greedy and beam search for the output of a model that gives logits token by token.

Whole batches are searched at once, and a finished sentence leaves its batch. Length penalty: Wu et al. 2016, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from einops import rearrange, repeat
from torch import Tensor

from vit.config import check, check_positive


class State(Protocol):
    """A decoder's state, one row a hypothesis."""

    def reorder(self, rows: Tensor) -> None: ...


M = TypeVar("M")
S = TypeVar("S", bound=State)


class Decodable(Protocol[M, S]):
    """A model that reads a source once and then a target token by token."""

    def encode(self, source: Tensor, source_lengths: Tensor) -> M: ...
    def start(self, memory: M) -> S: ...
    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S]: ...


@torch.no_grad()
def greedy_search(
    model: Decodable[M, S], source: Tensor, lengths: Tensor, *, bos: int, eos: int, max_length: int
) -> list[list[int]]:
    """Choose the likeliest next token at every step: for sources `b n` their targets, without `bos` and `eos`.

    At most `max_length` tokens are chosen, `eos` among them.
    """
    check_positive("max_length", max_length)
    state = model.start(model.encode(source, lengths))
    hypotheses: list[list[int]] = [[] for _ in range(source.shape[0])]
    sentences = torch.arange(source.shape[0], device=source.device)
    tokens = torch.full_like(sentences, bos)
    for _ in range(max_length):
        logits, state = model.step(tokens, state)
        tokens = logits.argmax(dim=-1)
        going = (tokens != eos).nonzero()[:, 0]
        if going.shape[0] == 0:
            break
        if going.shape[0] < tokens.shape[0]:
            state.reorder(going)
            sentences, tokens = sentences[going], tokens[going]
        for sentence, token in zip(sentences.tolist(), tokens.tolist(), strict=True):
            hypotheses[sentence].append(token)
    return hypotheses


@dataclass
class Finished:
    """The best of a sentence's finished hypotheses, and how many there have been."""

    score: float = float("-inf")
    tokens: tuple[int, ...] = ()
    count: int = 0

    def add(self, score: float, tokens: list[int]) -> None:
        self.count += 1
        if score > self.score:
            self.score, self.tokens = score, tuple(tokens)


@dataclass(frozen=True)
class Beams:
    """The unfinished hypotheses, k a sentence: `tokens` b k t; `scores` b k, their log-probabilities; `sentences` b,
    the sentences' places in the batch.
    """

    tokens: Tensor
    scores: Tensor
    sentences: Tensor


@torch.no_grad()
def beam_search(
    model: Decodable[M, S],
    source: Tensor,
    lengths: Tensor,
    *,
    bos: int,
    eos: int,
    max_length: int,
    beam_size: int = 4,
    length_penalty: float = 0.6,
) -> list[list[int]]:
    """The best targets found with `beam_size` hypotheses a sentence, without `bos` and `eos`.

    The best has the highest log-probability over `((5 + tokens) / 6) ** length_penalty`, `eos` counted among the
    tokens. A sentence is finished with `beam_size` finished hypotheses, or when no unfinished one can still beat the
    best of them. At `max_length` tokens unfinished hypotheses are scored as they are.
    """
    check_positive("max_length", max_length)
    check_positive("beam_size", beam_size)
    check(length_penalty >= 0, "length_penalty", length_penalty, "it must be at least 0")
    state = model.start(model.encode(source, lengths))
    finished = [Finished() for _ in range(source.shape[0])]
    sentences = torch.arange(source.shape[0], device=source.device)
    scores = torch.full((source.shape[0], beam_size), float("-inf"), device=source.device)
    scores[:, 0] = 0  # all hypotheses of a sentence are alike at first, so only one of them counts
    beams = Beams(source.new_full((*scores.shape, 1), bos), scores, sentences)
    state.reorder(repeat(beams.sentences, "b -> (b k)", k=beam_size))
    for length in range(1, max_length + 1):
        logits, state = model.step(rearrange(beams.tokens[:, :, -1], "b k -> (b k)"), state)
        beams, parents = _continue(beams, logits, eos, finished, _penalty(length, length_penalty))
        kept = _unfinished(beams, finished, beam_size, _penalty(max_length, length_penalty))
        if kept.shape[0] == 0:
            break
        state.reorder(rearrange(parents[kept], "b k -> (b k)"))
        beams = Beams(beams.tokens[kept], beams.scores[kept], beams.sentences[kept])
    else:
        longest = _penalty(max_length, length_penalty)
        best = zip(beams.sentences.tolist(), beams.scores[:, 0].tolist(), beams.tokens[:, 0, 1:].tolist(), strict=True)
        for sentence, score, tokens in best:
            finished[sentence].add(score / longest, tokens)
    return [list(best.tokens) for best in finished]


def _penalty(length: int, exponent: float) -> float:
    return ((5 + length) / 6) ** exponent


def _continue(beams: Beams, logits: Tensor, eos: int, finished: list[Finished], penalty: float) -> tuple[Beams, Tensor]:
    """The best continuations that do not end, and the rows they come from (b k). Those that end go to `finished`.

    Of 2k candidates at least k go on, since each hypothesis has one that ends. One that ends is finished only where it
    is among the best k.
    """
    num_beams, vocabulary = beams.scores.shape[1], logits.shape[-1]
    check(vocabulary >= 2, "vocabulary", vocabulary, "a search needs two tokens")
    log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(dim=-1)
    totals = beams.scores[:, :, None] + rearrange(log_probabilities, "(b k) v -> b k v", k=num_beams)
    scores, places = rearrange(totals, "b k v -> b (k v)").topk(2 * num_beams, dim=1)
    parents, chosen = places // vocabulary, places % vocabulary  # b 2k
    ends = chosen == eos
    for row, candidate in (ends & scores.isfinite())[:, :num_beams].nonzero().tolist():
        hypothesis = beams.tokens[row, parents[row, candidate], 1:].tolist()
        finished[int(beams.sentences[row])].add(scores[row, candidate].item() / penalty, hypothesis)
    going = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :num_beams]  # b k
    scores, parents, chosen = scores.gather(1, going), parents.gather(1, going), chosen.gather(1, going)
    places_in_batch = torch.arange(scores.shape[0], device=scores.device)[:, None]
    tokens = torch.cat((beams.tokens[places_in_batch, parents], chosen[:, :, None]), dim=2)
    return Beams(tokens, scores, beams.sentences), places_in_batch * num_beams + parents


def _unfinished(beams: Beams, finished: list[Finished], beam_size: int, last_penalty: float) -> Tensor:
    """Places in the batch of unfinished sentences. A hypothesis can only lose probability, so its final score is at
    most its present one divided by the largest penalty.
    """
    hopes = (beams.scores[:, 0] / last_penalty).tolist()
    going = [
        place
        for place, (sentence, hope) in enumerate(zip(beams.sentences.tolist(), hopes, strict=True))
        if finished[sentence].count < beam_size and hope > finished[sentence].score
    ]
    return torch.tensor(going, dtype=torch.int64, device=beams.scores.device)
