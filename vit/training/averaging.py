"""The exponential moving average of a model's weights, kept beside the raw ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vit.sharding import local_shard, shard_like


class WeightAverage:
    """Running average of every floating-point tensor of a model's state; counters are copied.

    Of a sharded model each process averages its own parts.

    The decay of step t is min(decay, (1 + t) / (10 + t)), so that the first steps are forgotten
    (tf.train.ExponentialMovingAverage).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        averages, currents = [], []
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                averages.append(local_shard(self.tensors[name]))
                currents.append(local_shard(tensor))
            else:
                self.tensors[name].copy_(tensor)
        torch._foreach_lerp_(averages, currents, 1 - decay)

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over whole tensors, as a checkpoint has them."""
        for name, tensor in tensors.items():
            self.tensors[name].copy_(shard_like(tensor, self.tensors[name]))

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights within the block, and its own ones back after it, bit for bit."""
        own = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(self.tensors)
        try:
            yield
        finally:
            model.load_state_dict(own)
