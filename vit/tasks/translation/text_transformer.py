"""The Transformer encoder–decoder (Vaswani et al. 2017): a source sentence and the target so far in, logits out.

Sentences are padded at their end. The decoder needs no mask for the target's padding: it follows the real tokens, and
these look back only.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from vit.attention.cache import KeyValueCache
from vit.attention.masks import causal, padding
from vit.layers.embeddings import TokenTables
from vit.layers.regularization import Dropout
from vit.layers.rotary import Rotation
from vit.layers.text_layers import DECODER_STREAMS, ENCODER_STREAMS, DecoderLayer, EncoderLayer
from vit.layers.text_positions import TextPositions, build_text_positions
from vit.models.initialization import initialize_text
from vit.models.model import Model
from vit.randomness import SampleRandom
from vit.tasks.translation.beam_memory import BeamMemory
from vit.tasks.translation.config import TranslatorConfig

NORM_EPS = 1e-5
SOURCE_STREAM, TARGET_STREAM, FIRST_LAYER_STREAM = 0, 1, 2


@dataclass(frozen=True)
class Memory:
    """The encoder's output: tokens `b n c`, and a mask of the real ones, `b 1 1 n`."""

    tokens: Tensor
    mask: Tensor


@dataclass
class TransformerState:
    """The decoder's state: the source (mask, then keys and values of every layer) and the target so far."""

    memory: BeamMemory
    caches: list[KeyValueCache]
    length: int = 0

    def reorder(self, rows: Tensor) -> None:
        """Row `i` becomes the former row `rows[i]`; rows may be left out and repeated."""
        self.memory.reorder(rows)
        for cache in self.caches:
            cache.reorder(rows)


class TextTransformer(Model):
    """`b n, b m -> b m vocabulary`."""

    def __init__(self, config: TranslatorConfig, source_vocabulary: int, target_vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.tables = TokenTables(
            config.width,
            source_vocabulary,
            target_vocabulary,
            share=config.share_embeddings,
            tie_output=config.tie_output,
        )
        self.source_positions = _positions(config)
        self.target_positions = _positions(config)
        self.source_dropout = Dropout(config.dropout_rate, SOURCE_STREAM)
        self.target_dropout = Dropout(config.dropout_rate, TARGET_STREAM)
        layer, depth = config.layer(NORM_EPS), config.depth
        after_encoder = FIRST_LAYER_STREAM + depth * ENCODER_STREAMS
        self.encoder = nn.ModuleList(
            EncoderLayer(layer, FIRST_LAYER_STREAM + index * ENCODER_STREAMS) for index in range(depth)
        )
        self.encoder_norm = _final_norm(config)
        self.decoder = nn.ModuleList(
            DecoderLayer(layer, after_encoder + index * DECODER_STREAMS) for index in range(config.decoder_layers)
        )
        self.decoder_norm = _final_norm(config)
        initialize_text(self, "xavier")

    def forward(
        self, source: Tensor, source_lengths: Tensor, target: Tensor, *, rng: SampleRandom | None = None
    ) -> Tensor:
        """Logits of the token after each of `target`'s, whose first is BOS: `b m vocabulary`."""
        memory = self.encode(source, source_lengths, rng=rng)
        x, mask, rotate = self._read(target, rng)
        for layer in self._decoder_layers():
            read = layer.project_memory(memory.tokens)
            x = layer(x, read, memory.mask, mask=mask, rotate=rotate, rng=rng)
        return self.tables.logits(self.decoder_norm(x))

    def encode(self, source: Tensor, source_lengths: Tensor, *, rng: SampleRandom | None = None) -> Memory:
        mask = padding(source_lengths, source.shape[1])
        x = self.source_positions(self.tables.source(source))
        rotate = self.source_positions.rotation(x)
        x = self.source_dropout(x, rng)
        for layer in self.encoder:
            x = layer(x, mask, rotate, rng)
        return Memory(self.encoder_norm(x), mask)

    def start(self, memory: Memory) -> TransformerState:
        """The decoder's state before the first target token."""
        layers = self._decoder_layers()
        read = [tensor for layer in layers for tensor in layer.project_memory(memory.tokens)]
        return TransformerState(BeamMemory(memory.mask, *read), [KeyValueCache() for _ in layers])

    def step(self, tokens: Tensor, state: TransformerState) -> tuple[Tensor, TransformerState]:
        """Logits after one more token a row, `b -> b vocabulary`. The state is changed and returned."""
        mask, *read = state.memory.tensors
        x = self.target_positions(self.tables.target(tokens[:, None]), state.length)
        rotate = self.target_positions.rotation(x, state.length)
        x = self.target_dropout(x)
        for index, (layer, cache) in enumerate(zip(self._decoder_layers(), state.caches, strict=True)):
            x = layer(x, (read[2 * index], read[2 * index + 1]), mask, rotate=rotate, cache=cache)
        state.length += 1
        return self.tables.logits(self.decoder_norm(x))[:, 0], state

    def alignment(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        """The last layer's attention to the source, mean over its heads: `b m n`, rows sum to 1."""
        memory = self.encode(source, source_lengths)
        x, mask, rotate = self._read(target, None)
        *before, last = self._decoder_layers()
        for layer in before:
            x = layer(x, layer.project_memory(memory.tokens), memory.mask, mask=mask, rotate=rotate)
        x = last.read_target(x, mask=mask, rotate=rotate)
        return last.alignment(x, memory.tokens, memory.mask)

    @property
    def num_layers(self) -> int:
        """Depth of the output; tables are 0."""
        return len(self.encoder) + len(self.decoder) + 1

    def layer_of(self, parameter_name: str) -> int:
        """0: tables and positions; then encoder, decoder, output."""
        part, _, rest = parameter_name.partition(".")
        if part in ("encoder", "decoder"):
            return int(rest.partition(".")[0]) + 1 + (len(self.encoder) if part == "decoder" else 0)
        is_input = part.endswith("positions") or "_table" in rest
        return 0 if is_input else self.num_layers

    def no_weight_decay(self) -> set[str]:
        """Norms, biases, positions and tokens."""
        return {name for name, p in self.named_parameters() if p.dim() <= 1 or _is_embedding(name)}

    def _read(self, target: Tensor, rng: SampleRandom | None) -> tuple[Tensor, Tensor, Rotation | None]:
        """The decoder's input, its mask and its rotation."""
        x = self.target_positions(self.tables.target(target))
        mask = causal(target.shape[1], device=target.device)
        return self.target_dropout(x, rng), mask, self.target_positions.rotation(x)

    def _decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]


def _is_embedding(name: str) -> bool:
    """Tokens and learned positions; the output's matrix is `tables.output`."""
    return "_table" in name or name.endswith("positions.table")


def _positions(config: TranslatorConfig) -> TextPositions:
    return build_text_positions(config.positions, config.width, config.num_heads, config.max_length)


def _final_norm(config: TranslatorConfig) -> nn.Module:
    """A pre-norm stack ends in a norm; a post-norm one has it in its last layer."""
    return nn.LayerNorm(config.width, NORM_EPS) if config.norm == "pre" else nn.Identity()
