"""Settings of a text encoder (`BertConfig`, Devlin et al. 2019) and of one Transformer layer over text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vit.config.arguments import check_types
from vit.config.rules import check_finite, check_positive, check_rate
from vit.config.vit import Backend, check_heads

NormPlacement = Literal["pre", "post"]
Activation = Literal["relu", "gelu"]
TextPositionKind = Literal["sinusoidal", "learned", "rope", "none"]


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One Transformer layer over text; made from the configuration of a whole model, which validates it."""

    width: int
    num_heads: int
    hidden_width: int
    norm: NormPlacement
    norm_eps: float
    activation: Activation
    dropout_rate: float
    attention_dropout_rate: float
    backend: Backend


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """A text encoder in BERT's layout, such as BERT and MiniLM."""

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
        check_types("model", self)
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
