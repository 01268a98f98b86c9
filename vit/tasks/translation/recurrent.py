"""RNN encoder–decoders of GRU cells: one fixed vector for the whole source, or attention to all of it.

Cho et al. 2014; Bahdanau et al. 2015. The encoder reads in both directions and the first state of the decoder comes
from the last states of both, in either model, so that they differ in attention alone. Sentences are padded at their
end. Work that does not depend on the previous step (projections of tokens, of the source, logits) is done at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vit.attention.core import DOT_PRODUCT, attend, attention_weights
from vit.attention.masks import padding
from vit.attention.scores import Additive, ScaledDotProduct
from vit.layers.embeddings import TokenTables
from vit.layers.regularization import Dropout
from vit.models.initialization import initialize_text
from vit.models.model import Model
from vit.randomness import SampleRandom
from vit.tasks.translation.beam_memory import BeamMemory
from vit.tasks.translation.config import TranslatorConfig

SOURCE_STREAM, TARGET_STREAM, READOUT_STREAM, FIRST_LAYER_STREAM = 0, 1, 2, 3


@dataclass(frozen=True)
class RecurrentMemory:
    """Both directions' states at every token, `b n 2c`; a mask of the real ones, `b 1 1 n`; the last states, `b 2c`."""

    annotations: Tensor
    mask: Tensor
    summary: Tensor


@dataclass
class RecurrentState:
    """The states of the decoder's layers, `b c` each, and the encoded source."""

    hidden: list[Tensor]
    memory: BeamMemory

    def reorder(self, rows: Tensor) -> None:
        """Row `i` becomes the former row `rows[i]`; rows may be left out and repeated."""
        self.hidden = [hidden[rows] for hidden in self.hidden]
        self.memory.reorder(rows)


class BidirectionalEncoder(nn.Module):
    """`b n c` and lengths → states of the last layer, `b n 2c`, and its last ones, `b 2c`. A stream a layer."""

    def __init__(self, width: int, depth: int, dropout_rate: float, stream: int) -> None:
        super().__init__()
        widths = [width] + [2 * width] * (depth - 1)
        self.layers = nn.ModuleList(nn.GRU(w, width, batch_first=True, bidirectional=True) for w in widths)
        self.dropouts = nn.ModuleList(Dropout(dropout_rate, stream + index) for index in range(depth - 1))

    def forward(self, vectors: Tensor, lengths: Tensor, rng: SampleRandom | None) -> tuple[Tensor, Tensor]:
        lengths, size = lengths.cpu(), vectors.shape[1]
        for index, layer in enumerate(self.layers):
            vectors = vectors if index == 0 else self.dropouts[index - 1](vectors, rng)
            packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
            outputs, last = layer(packed)
            vectors, _ = pad_packed_sequence(outputs, batch_first=True, total_length=size)
        return vectors, rearrange(last, "two b c -> b (two c)")


class Readout(nn.Module):
    """State, token and context to the features of the logits: linear layer and maxout (Goodfellow et al. 2013)."""

    def __init__(self, width: int, context_width: int) -> None:
        super().__init__()
        self.pieces = nn.Linear(2 * width + context_width, 2 * width)

    def forward(self, states: Tensor, vectors: Tensor, contexts: Tensor) -> Tensor:
        first, second = self.pieces(torch.cat((states, vectors, contexts), dim=-1)).chunk(2, dim=-1)
        return torch.maximum(first, second)


class FixedContextDecoder(nn.Module):
    """`b m c -> b m c`, with one vector for the source at every step (Cho et al. 2014)."""

    def __init__(self, config: TranslatorConfig, stream: int) -> None:
        super().__init__()
        width, depth = config.width, config.decoder_layers
        self.context = nn.Linear(2 * width, width)
        self.first_states = nn.Linear(width, depth * width)
        widths = [2 * width] + [width] * (depth - 1)
        self.layers = nn.ModuleList(nn.GRU(w, width, batch_first=True) for w in widths)
        self.dropouts = nn.ModuleList(Dropout(config.dropout_rate, stream + index) for index in range(depth - 1))
        self.readout = Readout(width, width)

    def start(self, memory: RecurrentMemory) -> RecurrentState:
        context = torch.tanh(self.context(memory.summary))  # b c
        states = torch.tanh(self.first_states(context)).chunk(len(self.layers), dim=-1)
        return RecurrentState(list(states), BeamMemory(context))

    def forward(self, vectors: Tensor, state: RecurrentState, rng: SampleRandom | None) -> Tensor:
        (context,) = state.memory.tensors
        contexts = context[:, None].expand(-1, vectors.shape[1], -1)  # b m c
        hidden = torch.cat((vectors, contexts), dim=-1)
        for index, layer in enumerate(self.layers):
            hidden = hidden if index == 0 else self.dropouts[index - 1](hidden, rng)
            hidden, last = layer(hidden, state.hidden[index][None].contiguous())
            state.hidden[index] = last[0]
        return self.readout(hidden, vectors, contexts)


class DotAlignment(nn.Module):
    """`(W_q q)ᵀ(W_k k) / √a`, of queries and keys whose widths may differ."""

    projected: ScaledDotProduct = DOT_PRODUCT
    """The score of projected queries and keys."""

    def __init__(self, query_width: int, key_width: int, hidden_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_width, hidden_width, bias=False)
        self.key = nn.Linear(key_width, hidden_width, bias=False)


class AttentiveDecoder(nn.Module):
    """`b m c -> b m c`, with a context of its own at every step: `s_i = f(s_{i-1}, y_{i-1}, c_i)`, where `c_i` is the
    mean of the source's states weighted by attention from `s_{i-1}` (Bahdanau et al. 2015, section 3.1).
    """

    def __init__(self, config: TranslatorConfig) -> None:
        super().__init__()
        width = config.width
        widths = (width, 2 * width, config.alignment_width)
        self.alignment: Additive | DotAlignment = (
            Additive(*widths) if config.score == "additive" else DotAlignment(*widths)
        )
        self.first_state = nn.Linear(2 * width, width)
        self.from_token = nn.Linear(width, 3 * width)
        self.from_context = nn.Linear(2 * width, 3 * width, bias=False)
        self.from_state = nn.Linear(width, 3 * width)
        self.readout = Readout(width, 2 * width)

    def start(self, memory: RecurrentMemory) -> RecurrentState:
        first = torch.tanh(self.first_state(memory.summary))
        keys = self.alignment.key(memory.annotations)
        return RecurrentState([first], BeamMemory(memory.annotations, keys, memory.mask))

    def forward(self, vectors: Tensor, state: RecurrentState, rng: SampleRandom | None) -> Tensor:  # noqa: ARG002
        states, contexts = self.states(vectors, state)
        return self.readout(states, vectors, contexts)

    def states(self, vectors: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor]:
        """The states after every token, `b m c`, and the contexts they were reached with, `b m 2c`."""
        annotations, keys, mask = state.memory.tensors
        annotations, keys = annotations[:, None], keys[:, None]  # b 1 n c
        states, contexts = [], []
        hidden = state.hidden[0]
        for from_token in self.from_token(vectors).unbind(1):
            query = self.alignment.query(hidden)[:, None, None]  # b 1 1 a
            context = attend(query, keys, annotations, mask=mask, score=self.alignment.projected)[:, 0, 0]  # b 2c
            hidden = gru_cell(from_token + self.from_context(context), self.from_state(hidden), hidden)
            states.append(hidden)
            contexts.append(context)
        state.hidden = [hidden]
        return torch.stack(states, dim=1), torch.stack(contexts, dim=1)

    def weights(self, vectors: Tensor, state: RecurrentState) -> Tensor:
        """The decoder's attention to the source before every token, `b m n`."""
        _, keys, mask = state.memory.tensors
        first = state.hidden[0][:, None]
        states, _ = self.states(vectors, state)
        query = self.alignment.query(torch.cat((first, states[:, :-1]), dim=1))[:, None]  # b 1 m a
        return attention_weights(query, keys[:, None], mask=mask, score=self.alignment.projected)[:, 0]


def gru_cell(from_input: Tensor, from_state: Tensor, hidden: Tensor) -> Tensor:
    """A GRU cell after its matrix products, `b 3c, b 3c, b c -> b c`; gates in torch's order: reset, update, new."""
    width = hidden.shape[-1]
    gates_of_input, new_of_input = from_input.split((2 * width, width), dim=-1)
    gates_of_state, new_of_state = from_state.split((2 * width, width), dim=-1)
    reset, update = torch.sigmoid(gates_of_input + gates_of_state).chunk(2, dim=-1)
    new = torch.tanh(new_of_input + reset * new_of_state)
    return torch.lerp(new, hidden, update)


class RecurrentTranslator(Model):
    """`b n, b m -> b m vocabulary`; `config.name` 'bahdanau' with attention, 'rnn' without."""

    def __init__(self, config: TranslatorConfig, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__()
        self.config = config
        width, rate, depth = config.width, config.dropout_rate, config.depth
        share, tie = config.share_embeddings, config.tie_output
        self.tables = TokenTables(width, source_vocabulary, target_vocabulary, share=share, tie_output=tie)
        self.source_dropout = Dropout(rate, SOURCE_STREAM)
        self.target_dropout = Dropout(rate, TARGET_STREAM)
        self.encoder = BidirectionalEncoder(width, depth, rate, FIRST_LAYER_STREAM)
        attentive = config.name == "bahdanau"
        self.decoder = (
            AttentiveDecoder(config) if attentive else FixedContextDecoder(config, FIRST_LAYER_STREAM + depth)
        )
        self.readout_dropout = Dropout(rate, READOUT_STREAM)
        initialize_text(self, "xavier")

    def forward(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, *, rng: SampleRandom | None = None
    ) -> Tensor:
        """Logits of the token after each of `target`'s, whose first is BOS: `b m vocabulary`.

        Every source must have a token.
        """
        state = self.start(self.encode(source, source_lengths, rng=rng))
        vectors = self.target_dropout(self.tables.target(target), rng)
        return self.tables.logits(self.readout_dropout(self.decoder(vectors, state, rng), rng))

    def encode(self, source: Tensor, source_lengths: Tensor, *, rng: SampleRandom | None = None) -> RecurrentMemory:
        vectors = self.source_dropout(self.tables.source(source), rng)
        annotations, summary = self.encoder(vectors, source_lengths, rng)
        return RecurrentMemory(annotations, padding(source_lengths, source.shape[1]), summary)

    def start(self, memory: RecurrentMemory) -> RecurrentState:
        """The decoder's state before the first target token."""
        return self.decoder.start(memory)

    def step(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Logits after one more token a row, `b -> b vocabulary`. The state is changed and returned."""
        vectors = self.target_dropout(self.tables.target(tokens[:, None]))
        features = self.readout_dropout(self.decoder(vectors, state, None))
        return self.tables.logits(features)[:, 0], state

    def alignment(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """The decoder's attention to the source: `b m n`, rows sum to 1. ValueError for `rnn`, which has none."""
        if not isinstance(self.decoder, AttentiveDecoder):
            raise ValueError("model.name: 'rnn' is not valid: it has no alignment; 'bahdanau' and 'transformer' have")
        state = self.start(self.encode(source, source_lengths))
        return self.decoder.weights(self.target_dropout(self.tables.target(target)), state)

    @property
    def num_layers(self) -> int:
        """Depth of the readout, which follows the recurrent layers."""
        return 2

    def layer_of(self, parameter_name: str) -> int:
        """0: tables; 1: encoder and decoder; 2: the readout and the logits."""
        if "_table" in parameter_name:
            return 0
        return 2 if parameter_name.startswith(("decoder.readout", "tables.output")) else 1

    def no_weight_decay(self) -> set[str]:
        """Biases, tokens and the alignment's last weights."""
        return {name for name, p in self.named_parameters() if p.dim() <= 1 or "_table" in name}
