"""Random numbers as a pure function of (seed, epoch, position in the epoch).

Every random choice for a sample (its crop, its mixing partner, the blocks that stochastic depth skips) is a hash of the
sample's position, never the next number of a shared generator. So it does not depend on the number of workers, on how a
batch is divided among processes, or on whether the run was interrupted and resumed.

The hash is the 64-bit finalizer of SplitMix64 (Steele, Lea and Flood 2014): integer arithmetic only, so every device
gives the same bits.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_GOLDEN_INVERSE = _signed(pow(0x9E3779B97F4A7C15, -1, 1 << 64))
_MIX_1 = _signed(0xBF58476D1CE4E5B9)
_MIX_2 = _signed(0x94D049BB133111EB)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Logical shift: torch shifts int64 arithmetically, so the copies of the sign bit are masked out."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _scramble(bits: Tensor) -> Tensor:
    bits = bits + _GOLDEN
    bits = (bits ^ _shift_right(bits, 30)) * _MIX_1
    bits = (bits ^ _shift_right(bits, 27)) * _MIX_2
    return bits ^ _shift_right(bits, 31)


def _scramble_number(value: int) -> int:
    """`_scramble` of one number, without ten tensor operations."""
    bits = (value + _GOLDEN) % (1 << 64)
    bits = (bits ^ bits >> 30) * _MIX_1 % (1 << 64)
    bits = (bits ^ bits >> 27) * _MIX_2 % (1 << 64)
    return _signed(bits ^ bits >> 31)


@dataclass(frozen=True)
class SampleRandom:
    """An independent stream of random numbers per sample; `state` is int64 of shape (b,)."""

    state: Tensor

    @classmethod
    def at(cls, seed: int, epoch: int, positions: Tensor) -> SampleRandom:
        """The streams of the samples at `positions` (b,) of an epoch."""
        root = _scramble_number(_scramble_number(seed) ^ epoch)
        return cls(_scramble(_scramble(positions.to(torch.int64)) ^ root))

    def fork(self, stream: int | str) -> SampleRandom:
        """An independent stream for one purpose; the same number or name gives the same stream."""
        number = zlib.crc32(stream.encode()) if isinstance(stream, str) else stream
        return SampleRandom(_scramble(self.state ^ _scramble_number(number)))

    def uniform(self, *shape: int) -> Tensor:
        """(b, *shape) float32 in [0, 1), 24 random bits each."""
        count = math.prod(shape)
        counter = torch.arange(count, device=self.state.device, dtype=torch.int64)
        # state + counter * _GOLDEN, in an order that torch.compile does not mistake for an index, which would overflow
        bits = _scramble((self.state[:, None] * _GOLDEN_INVERSE + counter) * _GOLDEN)  # b count
        return (_shift_right(bits, 40).to(torch.float32) * 2.0**-24).reshape(self.state.shape[0], *shape)

    def keep(self, rate: float, *shape: int) -> Tensor:
        """(b, *shape) booleans, False with probability `rate` to the nearest 65,536th; four per hash."""
        count = math.prod(shape)
        counter = torch.arange(-(-count // 4), device=self.state.device, dtype=torch.int64)
        bits = _scramble((self.state[:, None] * _GOLDEN_INVERSE + counter) * _GOLDEN)  # b count/4
        draws = bits.view(torch.int16)[:, :count]  # from -32768
        # the largest rate below 1 drops all but one in 65,536: one more would wrap around in 16 bits
        return (draws >= min(round(rate * 65536), 65535) - 32768).reshape(self.state.shape[0], *shape)

    def words_at(self, counters: Tensor) -> Tensor:
        """(b, 4) int64 in 0..65,535: the 16-bit words of one hash, number `counters` (b,) of each stream."""
        bits = _scramble((self.state * _GOLDEN_INVERSE + counters) * _GOLDEN)
        return bits[:, None].view(torch.int16).to(torch.int64).add_(32768)

    def integers(self, high: int, *shape: int) -> Tensor:
        """(b, *shape) int64 in [0, high)."""
        return (self.uniform(*shape) * high).to(torch.int64).clamp_(max=high - 1)

    def normal(self, *shape: int) -> Tensor:
        """(b, *shape) float32 draws of the standard normal by its quantile function; at most 5.6 in magnitude."""
        return torch.special.ndtri(self.uniform(*shape).to(torch.float64) + 2.0**-25).to(torch.float32)

    def beta(self, alpha: float, *shape: int) -> Tensor:
        """(b, *shape) float32 draws of Beta(alpha, alpha), alpha > 0."""
        # by the inverse distribution function: a rejection method takes no fixed number of draws
        from scipy.special import betaincinv

        probabilities = self.uniform(*shape).cpu().numpy()
        return torch.from_numpy(betaincinv(alpha, alpha, probabilities).astype("float32")).to(self.state.device)
