"""The feed-forward half of a block: two linear layers and what is between them. GELU is the exact one (erf).

Vaswani et al. 2017; GELU: Hendrycks and Gimpel 2016; SwiGLU: Shazeer 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from vit.config.model import FeedForwardKind
from vit.layers.regularization import Dropout
from vit.linear import is_plain, project
from vit.randomness import SampleRandom


def quick_gelu(x: Tensor) -> Tensor:
    """`x · sigmoid(1.702 x)`: the approximation that OpenAI's CLIP was trained with."""
    return x * (1.702 * x).sigmoid()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}


class FeedForward(nn.Module):
    """`contract(activation(expand(x)))`, `b n c -> b n c`. It takes the streams `stream` and `stream + 1`."""

    def __init__(
        self,
        width: int,
        hidden_width: int,
        dropout_rate: float,
        stream: int,
        activation: Callable[[Tensor], Tensor] = gelu,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.expand = nn.Linear(width, hidden_width)
        self.hidden_dropout = Dropout(dropout_rate, stream)
        self.contract = nn.Linear(hidden_width, width)
        self.dropout = Dropout(dropout_rate, stream + 1)

    def forward(self, x: Tensor, rng: SampleRandom | None = None) -> Tensor:
        hidden = self.hidden_dropout(self._activate(project(self.expand, x)), rng)
        return self.dropout(project(self.contract, hidden), rng)

    def _activate(self, hidden: Tensor) -> Tensor:
        """In place in inference mode, where nobody else holds `hidden`: that saves the largest tensor of a block."""
        alone = not torch.compiler.is_compiling() and hidden.is_inference() and is_plain(self.expand)
        if alone and self.activation is gelu:
            return gelu(hidden, out=hidden)  # type: ignore[call-arg]  # torch's stub lacks it
        return self.activation(hidden)


class SwiGLU(nn.Module):
    """`contract(silu(gate(x)) * expand(x))`. `hidden_width` is cut to two thirds, so that it has as many
    parameters.
    """

    def __init__(self, width: int, hidden_width: int, dropout_rate: float, stream: int) -> None:
        super().__init__()
        hidden_width = -(-hidden_width * 2 // 3 // 8) * 8
        self.gate = nn.Linear(width, hidden_width)
        self.expand = nn.Linear(width, hidden_width)
        self.hidden_dropout = Dropout(dropout_rate, stream)
        self.contract = nn.Linear(hidden_width, width)
        self.dropout = Dropout(dropout_rate, stream + 1)

    def forward(self, x: Tensor, rng: SampleRandom | None = None) -> Tensor:
        hidden = self.hidden_dropout(silu(project(self.gate, x)) * project(self.expand, x), rng)
        return self.dropout(project(self.contract, hidden), rng)


def build_feedforward(
    kind: FeedForwardKind, width: int, hidden_width: int, dropout_rate: float, stream: int
) -> FeedForward | SwiGLU:
    """The layer of a configuration's `feedforward`."""
    if kind == "swiglu":
        return SwiGLU(width, hidden_width, dropout_rate, stream)
    return FeedForward(width, hidden_width, dropout_rate, stream, ACTIVATIONS[kind])
