"""The feed-forward half of a block: two linear layers with an activation. `gelu` is the exact one (erf).

Vaswani et al. 2017; GELU: Hendrycks and Gimpel 2016; SwiGLU: Shazeer 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from vit.config import ViTConfig
from vit.layers.norm import NORMS
from vit.layers.regularization import Dropout
from vit.linear import is_plain, project
from vit.randomness import SampleRandom


def quick_gelu(x: Tensor) -> Tensor:
    """`x · sigmoid(1.702 x)`, the approximation used by OpenAI's CLIP."""
    return x * (1.702 * x).sigmoid()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}


class FeedForward(nn.Module):
    """`fc2(activation(fc1(x)))`, `b n c -> b n c`. Uses the random streams `stream` and `stream + 1`."""

    def __init__(
        self,
        width: int,
        hidden_width: int,
        dropout_rate: float,
        stream: int,
        activation: Callable[[Tensor], Tensor] = gelu,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.fc1 = nn.Linear(width, hidden_width, bias=bias)
        self.hidden_dropout = Dropout(dropout_rate, stream)
        self.fc2 = nn.Linear(hidden_width, width, bias=bias)
        self.dropout = Dropout(dropout_rate, stream + 1)

    def forward(self, x: Tensor, rng: SampleRandom | None = None) -> Tensor:
        hidden = project(self.fc1, x)
        in_place = not torch.compiler.is_compiling() and hidden.is_inference() and is_plain(self.fc1)
        if in_place and self.activation is gelu:
            # nothing else holds the tensor in inference mode: this saves the largest one of a block
            gelu(hidden, out=hidden)  # type: ignore[call-arg]  # torch's stub lacks it
        else:
            hidden = self.activation(hidden)
        return self.dropout(project(self.fc2, self.hidden_dropout(hidden, rng)), rng)


def swiglu_width(hidden_width: int, multiple: int = 8) -> int:
    """Two thirds of `hidden_width`, rounded up to a multiple of `multiple`."""
    return -(-hidden_width * 2 // 3 // multiple) * multiple


class SwiGLU(nn.Module):
    """`fc2(silu(gate(x)) * fc1(x))`, with 2/3 of `hidden_width`, which gives the parameter count of `FeedForward`.

    The width is rounded up to a multiple of `multiple`. `norm` makes the norm before `fc2` (EVA-02: Fang et al. 2023);
    None: there is none.
    """

    def __init__(
        self,
        width: int,
        hidden_width: int,
        dropout_rate: float,
        stream: int,
        multiple: int = 8,
        norm: Callable[[int], nn.Module] | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        hidden_width = swiglu_width(hidden_width, multiple)
        self.gate = nn.Linear(width, hidden_width, bias=bias)
        self.fc1 = nn.Linear(width, hidden_width, bias=bias)
        self.hidden_dropout = Dropout(dropout_rate, stream)
        self.norm = nn.Identity() if norm is None else norm(hidden_width)
        self.fc2 = nn.Linear(hidden_width, width, bias=bias)
        self.dropout = Dropout(dropout_rate, stream + 1)

    def forward(self, x: Tensor, rng: SampleRandom | None = None) -> Tensor:
        hidden = self.hidden_dropout(silu(project(self.gate, x)) * project(self.fc1, x), rng)
        return self.dropout(project(self.fc2, self.norm(hidden)), rng)


def build_feedforward(config: ViTConfig, stream: int) -> FeedForward | SwiGLU:
    """The layer of a configuration's `feedforward`."""
    width, hidden_width, rate = config.width, round(config.width * config.mlp_ratio), config.dropout_rate
    if config.feedforward == "swiglu":
        norm = partial(NORMS[config.norm], eps=config.norm_eps) if config.feedforward_norm else None
        return SwiGLU(width, hidden_width, rate, stream, config.swiglu_multiple, norm, bias=config.proj_bias)
    activation = ACTIVATIONS[config.feedforward]
    return FeedForward(width, hidden_width, rate, stream, activation, bias=config.proj_bias)
