"""The interface that training expects of a model: depth of each parameter, and those without weight decay."""

from __future__ import annotations

from torch import nn


class Model(nn.Module):
    """A module whose parameters have a depth; by default a single layer."""

    @property
    def num_layers(self) -> int:
        """Depth of the parameters after the last block; that of the embedding is 0."""
        return 1

    def layer_of(self, parameter_name: str) -> int:  # noqa: ARG002
        """Depth of a parameter, from 0 to `num_layers`, for layer-wise learning rates."""
        return 0

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: norms and biases."""
        return {name for name, parameter in self.named_parameters() if parameter.dim() <= 1}
