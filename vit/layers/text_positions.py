"""Position embeddings for text: sinusoids, learned vectors, a rotation of queries and keys, or none.

Positions count from 0; `start` is that of the first given token, for a decoder that reads one token at a time.
Sinusoids: Vaswani et al. 2017, section 3.5; rotation: Su et al. 2021. Embeddings for grids are in `positions.py`.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.config import check
from vit.config.text_model import TextPositionKind
from vit.layers.rotary import Rotation, rotation_by

TEMPERATURE = 10_000.0


def _angles(positions: Tensor, width: int) -> Tensor:
    """`position / 10000^(2k/width)` in float64, so that late positions are as exact as early ones: n (width/2)."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
    return positions[:, None] * TEMPERATURE**-exponents


def sinusoidal(positions: Tensor, width: int) -> Tensor:
    """`PE[p, 2k] = sin(p / 10000^(2k/width))` and `PE[p, 2k+1] = cos` of the same: n c, float32; an even width."""
    angles = _angles(positions, width)
    return rearrange(torch.stack((angles.sin(), angles.cos())), "two n k -> n (k two)").float()


def rotation_along(positions: Tensor, head_width: int) -> Rotation:
    """The rotation of `b h n d` by the positions' angles, channel k with channel k + d/2."""
    return rotation_by(_angles(positions, head_width))


class TextPositions(nn.Module):
    """No position embedding; the interface of every kind."""

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:  # noqa: ARG002
        """Token vectors `b n c` with their embedding added."""
        return tokens

    def rotation(self, tokens: Tensor, start: int = 0) -> Rotation | None:  # noqa: ARG002
        """The rotation of the queries and keys of `tokens`."""
        return None


class Sinusoidal(TextPositions):
    """Adds `sinusoidal`."""

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        return tokens + sinusoidal(_positions(tokens, start), tokens.shape[2]).to(tokens.dtype)


class LearnedPositions(TextPositions):
    """One learned vector per position. ValueError for positions beyond `max_length`."""

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(max_length, width))

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        needed, max_length = start + tokens.shape[1], self.table.shape[0]
        check(needed <= max_length, "model.max_length", max_length, f"a sequence has {needed} tokens")
        return tokens + self.table[start:needed]


class RotaryPositions(TextPositions):
    """Rotates queries and keys by `rotation_along`."""

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.head_width = head_width

    def rotation(self, tokens: Tensor, start: int = 0) -> Rotation:
        return rotation_along(_positions(tokens, start), self.head_width)


def _positions(tokens: Tensor, start: int) -> Tensor:
    return torch.arange(start, start + tokens.shape[1], device=tokens.device)


def build_text_positions(kind: TextPositionKind, width: int, num_heads: int, max_length: int) -> TextPositions:
    match kind:
        case "sinusoidal":
            return Sinusoidal()
        case "learned":
            return LearnedPositions(max_length, width)
        case "rope":
            return RotaryPositions(width // num_heads)
        case "none":
            return TextPositions()
