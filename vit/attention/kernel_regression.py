"""Nadaraya–Watson regression: attention whose queries, keys and values are numbers (Nadaraya 1964; Watson 1964).

The estimate at a query is the average of the values, each weighted by the distance of its key. Notation: see `core.py`.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.attention.core import attend, attention_weights
from vit.attention.scores import GaussianKernel


class NadarayaWatson(nn.Module):
    """`f(q) = Σᵢ softmaxᵢ(-½ ((q - kᵢ) wᵢ)²) vᵢ`, a sum over all keys.

    The kernel of key i is a Gaussian of standard deviation 1/wᵢ. `widths`: one w, or one per key, (m,); with `learned`
    there is one per key, and they are parameters.
    """

    keys: Tensor
    values: Tensor
    widths: Tensor

    def __init__(self, keys: Tensor, values: Tensor, widths: float | Tensor = 1.0, *, learned: bool = False) -> None:
        super().__init__()
        assert keys.dim() == 1, f"keys of shape {tuple(keys.shape)}, not (m,)"
        assert keys.shape == values.shape, f"{len(keys)} keys and {len(values)} values"
        widths = torch.as_tensor(widths, dtype=keys.dtype, device=keys.device)
        assert widths.shape in ((), keys.shape), f"{tuple(widths.shape)} widths for {len(keys)} keys"
        self.register_buffer("keys", keys)
        self.register_buffer("values", values)
        if learned:
            self.widths = nn.Parameter(widths.expand(keys.shape).clone())
        else:
            self.register_buffer("widths", widths)

    def forward(self, queries: Tensor, mask: Tensor | None = None) -> Tensor:
        """Estimates (n,) at queries (n,); `mask` as in `attend`, such as `leave_one_out`."""
        keys, values = _as_vectors(self.keys), _as_vectors(self.values)
        averages = attend(_as_vectors(queries), keys, values, mask=mask, score=GaussianKernel(self.widths))
        return rearrange(averages, "1 1 n 1 -> n")

    def weights(self, queries: Tensor, mask: Tensor | None = None) -> Tensor:
        """The weight of each key for each query: n m, rows sum to 1."""
        score = GaussianKernel(self.widths)
        weights = attention_weights(_as_vectors(queries), _as_vectors(self.keys), mask=mask, score=score)
        return rearrange(weights, "1 1 n m -> n m")


def leave_one_out(own_keys: Tensor, num_keys: int) -> Tensor:
    """A mask n m that hides from query i the key `own_keys[i]`, (n,) of int64."""
    # a training point that may attend to itself is fitted best by a kernel that sees nothing else: it learns the noise
    return torch.arange(num_keys, device=own_keys.device) != own_keys[:, None]


def _as_vectors(numbers: Tensor) -> Tensor:
    return rearrange(numbers, "n -> 1 1 n 1")
