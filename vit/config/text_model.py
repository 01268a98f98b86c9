"""Which text model: a translator (`TranslatorConfig`), a text encoder (`BertConfig`), and one layer of either.

Vaswani et al. 2017; Bahdanau et al. 2015; Cho et al. 2014; Devlin et al. 2019. Sizes of vocabularies that are learned
from data are no settings: they are passed when a model is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vit.config.model import Backend, check_heads
from vit.config.rules import check, check_effect, check_finite, check_positive, check_rate

Norm = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]
TextPlaces = Literal["sinusoidal", "learned", "rope", "none"]


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One Transformer layer over text; it is read off the configuration of the whole model, which judges it."""

    width: int
    num_heads: int
    hidden_width: int
    norm: Norm
    norm_eps: float
    activation: Activation
    dropout_rate: float
    attention_dropout_rate: float
    backend: Backend


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig:
    """The `model:` section of a translation run."""

    name: Literal["transformer", "bahdanau", "rnn"] = "transformer"
    """`bahdanau`: GRUs whose decoder attends to the source; `rnn`: the same with one fixed vector in its place."""
    width: int = 256
    """Of tokens' vectors and of hidden states (a GRU's, in one direction)."""
    depth: int = 3
    """Layers of the encoder."""
    decoder_depth: int | None = None
    """None: as many as the encoder's. `bahdanau` always has one."""
    num_heads: int = 8
    hidden_width: int | None = None
    """`transformer`: of the feed-forward layers, None: 4 × width. `bahdanau`: of the alignment, None: width."""
    norm: Norm = "pre"
    activation: Activation = "relu"
    positions: TextPlaces = "sinusoidal"
    max_length: int = 256
    """`positions: learned` only: tokens of the longest sequence there is a position for."""
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.0
    score: Literal["additive", "dot"] = "additive"
    """`bahdanau` only: `wᵀ tanh(W s + U h)` or `(W s)ᵀ(U h)`."""
    share_embeddings: bool = False
    """One table of vectors for source and target, which then have one vocabulary."""
    tie_output: bool = True
    """The target's table is the matrix that makes the logits."""
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        check_finite("model", self)
        for name in ("width", "depth", "decoder_depth", "num_heads", "hidden_width", "max_length"):
            check_positive(f"model.{name}", getattr(self, name))
        for name in ("dropout_rate", "attention_dropout_rate"):
            check_rate(f"model.{name}", getattr(self, name))
        self._check_effects()
        if self.name == "transformer":
            self._check_widths()

    def _check_effects(self) -> None:
        transformer, bahdanau = self.name == "transformer", self.name == "bahdanau"
        of_transformer = ("num_heads", "norm", "activation", "positions", "attention_dropout_rate", "backend")
        learned = transformer and self.positions == "learned"
        needs = {
            **dict.fromkeys(of_transformer, (transformer, "model.name 'transformer'")),
            "decoder_depth": (not bahdanau, "model.name 'transformer' or 'rnn'"),
            "hidden_width": (self.name != "rnn", "model.name 'transformer' or 'bahdanau'"),
            "max_length": (learned, "model.positions 'learned'"),
            "score": (bahdanau, "model.name 'bahdanau'"),
        }
        check_effect("model", self, needs)

    def _check_widths(self) -> None:
        check_heads(self.width, self.num_heads)
        even = "model.positions {!r} needs an even number"
        if self.positions == "sinusoidal":
            check(self.width % 2 == 0, "model.width", self.width, even.format(self.positions))
        if self.positions == "rope":
            head_width = self.width // self.num_heads
            check(head_width % 2 == 0, "model.width / model.num_heads", head_width, even.format(self.positions))

    @property
    def decoder_layers(self) -> int:
        if self.name == "bahdanau":
            return 1
        return self.depth if self.decoder_depth is None else self.decoder_depth

    @property
    def alignment_width(self) -> int:
        """Of the vectors whose likeness is the alignment of `bahdanau`."""
        return self.width if self.hidden_width is None else self.hidden_width

    def layer(self, norm_eps: float) -> LayerConfig:
        """A layer of `transformer`."""
        return LayerConfig(
            width=self.width,
            num_heads=self.num_heads,
            hidden_width=4 * self.width if self.hidden_width is None else self.hidden_width,
            norm=self.norm,
            norm_eps=norm_eps,
            activation=self.activation,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            backend=self.backend,
        )


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """A text encoder in BERT's layout: BERT itself, MiniLM and their like."""

    vocabulary_size: int = 30522
    width: int = 768
    depth: int = 12
    num_heads: int = 12
    hidden_width: int = 3072
    max_length: int = 512
    num_token_types: int = 2
    norm_eps: float = 1e-12
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    pooler: bool = True
    """A linear layer and tanh on the first token's vector."""
    backend: Backend = "auto"

    def __post_init__(self) -> None:
        check_finite("model", self)
        sizes = ("vocabulary_size", "width", "depth", "num_heads", "hidden_width", "max_length", "num_token_types")
        for name in (*sizes, "norm_eps"):
            check_positive(f"model.{name}", getattr(self, name))
        for name in ("dropout_rate", "attention_dropout_rate"):
            check_rate(f"model.{name}", getattr(self, name))
        check_heads(self.width, self.num_heads)

    def layer(self) -> LayerConfig:
        return LayerConfig(
            width=self.width,
            num_heads=self.num_heads,
            hidden_width=self.hidden_width,
            norm="post",
            norm_eps=self.norm_eps,
            activation="gelu",
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            backend=self.backend,
        )
