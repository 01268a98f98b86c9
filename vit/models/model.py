"""The interface that training expects of a model: depth and decay of its parameters, and whether samples interact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from vit.models import Classifier

ENCODER = "encoder."
"""The first part of the names of an encoder's tensors in the model that it is trained in."""


def normalizes_micro_batches(model: nn.Module) -> bool:
    """Whether a trained BatchNorm makes a sample's output depend on the others of its micro-batch."""
    return any(isinstance(module, nn.BatchNorm2d) and module.weight.requires_grad for module in model.modules())


class Model(nn.Module):
    """A module whose parameters have a depth; by default a single layer."""

    @property
    def num_layers(self) -> int:
        """Depth of the parameters after the last block; that of the embedding is 0."""
        return 1

    def layer_of(self, parameter_name: str) -> int:  # noqa: ARG002
        """Depth of a parameter, from 0 to `num_layers`, for layer-wise learning rates."""
        return 0

    def is_in_block(self, parameter_name: str) -> bool:
        """Whether a parameter belongs to a block: not to what is before the first one or after the last."""
        return 0 < self.layer_of(parameter_name) < self.num_layers

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: norms and biases."""
        return {name for name, parameter in self.named_parameters() if parameter.dim() <= 1}


class EncoderModel(Model):
    """An encoder with the parts that only its training needs; these count as deeper than the whole encoder."""

    encoder: Classifier

    @property
    def num_layers(self) -> int:
        return self.encoder.num_layers + 1

    def layer_of(self, parameter_name: str) -> int:
        if parameter_name.startswith(ENCODER):
            return self.encoder.layer_of(parameter_name.removeprefix(ENCODER))
        return self.num_layers

    def is_in_block(self, parameter_name: str) -> bool:
        if parameter_name.startswith(ENCODER):  # whose pooling is after its own last block
            return self.encoder.is_in_block(parameter_name.removeprefix(ENCODER))
        return super().is_in_block(parameter_name)

    def no_weight_decay(self) -> set[str]:
        """Those of the encoder, and the other norms and biases."""
        of_encoder = {f"{ENCODER}{name}" for name in self.encoder.no_weight_decay()}
        return of_encoder | {name for name in super().no_weight_decay() if not name.startswith(ENCODER)}
