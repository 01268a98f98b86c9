"""Batches of tokens on the CPU: epochs of optimizer steps for training, each sentence once for evaluation.

Sentences of about one length share a batch (bucketing), yet what a step contains depends on (seed, epoch, step) alone,
however many processes and micro-batches share it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vit.config import check
from vit.data.loading import Step
from vit.data.order import StepPlan, epoch_order
from vit.randomness import SampleRandom
from vit.tasks.translation.config import TextDataConfig
from vit.tasks.translation.text import TextSplit
from vit.tasks.translation.vocabulary import BOS, EOS, PAD, Vocabularies, Vocabulary

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextBatch:
    """One micro-batch of one process; b sentence pairs, padded to the longest of them."""

    source: Tensor
    """int64 (b, n), each sentence with EOS at its end."""
    source_lengths: Tensor
    """int64 (b,), EOS counted."""
    target: Tensor
    """int64 (b, m), each with BOS before and EOS after it."""
    target_lengths: Tensor
    """int64 (b,), BOS and EOS counted."""
    positions: Tensor
    """int64 (b,), place in the epoch's order; at evaluation the index."""
    indices: Tensor
    """int64 (b,), index in the split."""
    weights: Tensor
    """float32 (b,): 1; 0 for the stand-in of an empty micro-batch."""

    def to(self, device: torch.device | str) -> TextBatch:
        return TextBatch(*(tensor.to(device) for tensor in vars(self).values()))


@dataclass(frozen=True)
class EncodedSplit:
    """A split and its tokens, int64: sources end with EOS, targets begin with BOS and end with EOS."""

    text: TextSplit
    sources: list[Tensor]
    targets: list[Tensor]

    @classmethod
    def encode(cls, text: TextSplit, vocabularies: Vocabularies) -> EncodedSplit:
        targets = [[BOS, *vocabularies.target.encode(line), EOS] for line in text.targets]
        return cls(text, encode_sources(vocabularies.source, text.sources), [torch.tensor(row) for row in targets])

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def indices(self) -> Tensor:
        return torch.arange(len(self))

    def batch(
        self, indices: Tensor, *, positions: Tensor, weights: Tensor, widths: tuple[int, int] = (0, 0)
    ) -> TextBatch:
        """The pairs of these rows, padded to the longest source and target, and to at least `widths` tokens."""
        rows = indices.tolist()
        source, source_lengths = pad([self.sources[row] for row in rows], widths[0])
        target, target_lengths = pad([self.targets[row] for row in rows], widths[1])
        return TextBatch(source, source_lengths, target, target_lengths, positions, indices, weights)


def encode_sources(vocabulary: Vocabulary, lines: Sequence[str]) -> list[Tensor]:
    """The model's input for each line: int64 (n,), EOS at its end, so that an empty line has a token too."""
    return [torch.tensor([*vocabulary.encode(line), EOS]) for line in lines]


def pad(rows: Sequence[Tensor], width: int = 0) -> tuple[Tensor, Tensor]:
    """Rows of tokens as one tensor (b, n), n at least `width`, with `PAD` behind the shorter ones; lengths (b,)."""
    lengths = torch.tensor([len(row) for row in rows])
    padded = pad_sequence(list(rows), batch_first=True, padding_value=PAD)
    return F.pad(padded, (0, max(0, width - padded.shape[1])), value=PAD), lengths


def bucketed_order(seed: int, epoch: int, lengths: Tensor, *, batch_size: int, pool: int) -> Tensor:
    """The sentence pair at each position of the epoch: int64 (n,); `lengths` (n, 2), of both sides.

    The random order of the epoch is cut into pools of `pool` batches; each pool is sorted by length and cut into
    batches; these are shuffled over the whole epoch. The rest that fills no batch is the end of the random order and
    the last step, so no length is preferred there.
    """
    order = epoch_order(seed, epoch, len(lengths))
    num_batches = len(order) // batch_size
    whole, rest = order[: num_batches * batch_size], order[num_batches * batch_size :]
    pools = [_by_length(part, lengths) for part in whole.split(pool * batch_size)]
    keys = SampleRandom.at(seed, epoch, torch.arange(num_batches)).fork("batches").state
    batches = torch.cat(pools).reshape(num_batches, batch_size)[torch.argsort(keys, stable=True)]
    return torch.cat([batches.flatten(), _by_length(rest, lengths)])


def _by_length(indices: Tensor, lengths: Tensor) -> Tensor:
    """Shortest first by the longer side, then by both together; equal ones stay in their order."""
    chosen = lengths[indices].numpy()
    return indices[torch.from_numpy(np.lexsort((chosen.sum(axis=1), chosen.max(axis=1))))]


class TextTrainLoader:
    """The epochs of a training split, as one of `world_size` processes sees them.

    ValueError naming `data.batch_size` where it cannot be divided evenly, `data.max_length` where it leaves nothing.
    """

    def __init__(
        self,
        split: EncodedSplit,
        config: TextDataConfig,
        *,
        seed: int,
        accumulation_steps: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        assert 0 <= rank < world_size
        self.split, self._config, self._seed = split, config, seed
        pairs = zip(split.sources, split.targets, strict=True)
        self._lengths = torch.tensor([[len(source) - 1, len(target) - 2] for source, target in pairs])
        self._kept = torch.nonzero(self._lengths.amax(dim=1) <= config.max_length).flatten()
        self._micro_batches = range(rank, accumulation_steps * world_size, world_size)
        self._plan = StepPlan(len(self._kept), config.batch_size, accumulation_steps * world_size, group=1)
        limit, num = config.max_length, len(split)
        shortest = int(self._lengths.amax(dim=1).min())
        rule = f"it leaves out all {num} training pairs; the shortest has {shortest} tokens"
        check(len(self._kept) > 0, "data.max_length", limit, rule)
        if self.num_left_out and rank == 0:
            logger.warning("%d of %d training pairs are left out: data.max_length is %d", self.num_left_out, num, limit)

    @property
    def num_left_out(self) -> int:
        """Pairs with a side longer than `data.max_length`."""
        return len(self.split) - len(self._kept)

    @property
    def steps_per_epoch(self) -> int:
        return self._plan.num_steps

    @property
    def samples_per_epoch(self) -> int:
        return len(self._kept)

    def cost(self, epochs: int) -> float:
        """Every epoch has the same sentences."""
        return epochs

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Step]:
        """The steps of an epoch from `start_step` on; those before it are not built."""
        size, pool = self._config.batch_size, self._config.pool
        order = self._kept[bucketed_order(self._seed, epoch, self._lengths[self._kept], batch_size=size, pool=pool)]
        for step in range(start_step, self.steps_per_epoch):
            whole = self._plan.positions(step)
            lengths = self._lengths[order[whole.start : whole.stop]]
            predicted = lengths[:, 1] + 1  # EOS is predicted too
            # of all parts alike: the random numbers of dropout in attention are counted by padded tokens
            widths = int(lengths[:, 0].max()) + 1, int(lengths[:, 1].max()) + 2
            batches = []
            for chunk in self._micro_batches:
                held = self._plan.chunk(step, chunk)
                places = held or whole[:1]  # of an empty chunk the step's first pair stands in, with weight 0
                positions = torch.arange(places.start, places.stop)
                weights = torch.full(positions.shape, 1.0 if held else 0.0)
                rows = order[positions]
                batches.append(self.split.batch(rows, positions=positions, weights=weights, widths=widths))
            yield Step(batches, len(whole), float(predicted.sum()))


class TextEvalLoader:
    """Every pair of a split once, divided among the processes; long sentences first, about one length a batch."""

    def __init__(self, split: EncodedSplit, config: TextDataConfig, *, rank: int = 0, world_size: int = 1) -> None:
        assert 0 <= rank < world_size
        self.split = split
        lengths = torch.tensor([len(row) for row in split.sources])
        share = torch.argsort(lengths, descending=True, stable=True)[rank::world_size]
        longer = [max(len(source), len(target)) for source, target in zip(split.sources, split.targets, strict=True)]
        # a batch is padded to its longest sentence, so one that is longer than any in training is with few others
        self._chunks = _split(share.tolist(), longer, config.eval_batch_size, config.max_length)

    def __len__(self) -> int:
        """Batches of this process."""
        return len(self._chunks)

    def __iter__(self) -> Iterator[TextBatch]:
        for chunk in self._chunks:
            indices = torch.tensor(chunk)
            yield self.split.batch(indices, positions=indices, weights=torch.ones(len(indices)))


def _split(rows: Sequence[int], lengths: Sequence[int], batch_size: int, usual_length: int) -> list[list[int]]:
    """Cut `rows` into batches of at most `batch_size` rows, and of as many tokens, padding included, as that many rows
    of the usual length have; a longer row than all these tokens is alone. `lengths` are those of all rows.
    """
    chunks: list[list[int]] = []
    longest = 0
    for row in rows:
        longest = max(longest, lengths[row])
        size = len(chunks[-1]) if chunks else batch_size
        if size == batch_size or (size + 1) * longest > batch_size * (usual_length + 2):  # BOS and EOS
            chunks.append([])
            longest = lengths[row]
        chunks[-1].append(row)
    return chunks
