"""A name for weights that have none: the named architecture that has tensors of exactly these names and shapes.

Names of the same shapes may differ in the number of heads, which no tensor tells; so it is an example to try, and
nothing is loaded by it unasked.
"""

from __future__ import annotations

import torch

from vit.config import ModelConfig, ViTConfig
from vit.models.zoo import build_model, list_models, resolve
from vit.weights.layout import Layout, Tensors, apply_rules, strip_prefixes

_HEADS = ("head.", "distillation_head.")


def architecture_like(layout: Layout, tensors: Tensors) -> str | None:
    """The shortest name of a Vision Transformer with these tensors, whatever its classes; None where there is none."""
    tensors = strip_prefixes(layout, tensors)
    num_values = {tensor.numel() for tensor in tensors.values()}
    for name in sorted((*list_models("vit_*"), *list_models("deit*")), key=len):
        config = resolve(ModelConfig(name=name), 2)
        assert isinstance(config, ViTConfig)
        patch = 3 * config.width * config.patch_size[0] * config.patch_size[1]
        tokens = config.grid_size[0] * config.grid_size[1] + config.num_placed_tokens
        if {patch, config.width * tokens} <= num_values and _has_shapes(layout, tensors, config):
            return name
    return None


def _has_shapes(layout: Layout, tensors: Tensors, config: ViTConfig) -> bool:
    with torch.device("meta"):
        model = build_model(config)
    try:
        found = apply_rules(layout, {name: tensor.to("meta") for name, tensor in tensors.items()}, config)
    except ValueError:
        return False
    shapes = [
        {name: tensor.shape for name, tensor in each.items() if not name.startswith(_HEADS)}
        for each in (found.tensors, model.state_dict())
    ]
    return shapes[0] == shapes[1] and not found.unexpected
