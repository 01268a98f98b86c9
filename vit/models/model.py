"""What training may ask of any model: where its parameters stand in depth, and which of them do not decay."""

from __future__ import annotations

from torch import nn


class Model(nn.Module):
    """A module whose parameters have a depth. One that does not say otherwise is a single layer."""

    @property
    def num_layers(self) -> int:
        """Depth of what follows the last block; 0 is the embedding's."""
        return 1

    def layer_of(self, parameter_name: str) -> int:  # noqa: ARG002
        """Depth of a parameter, from 0 to `num_layers`, for layer-wise rates; the blocks are in between."""
        return 0

    def no_weight_decay(self) -> set[str]:
        """Norms and biases."""
        return {name for name, parameter in self.named_parameters() if parameter.dim() <= 1}
