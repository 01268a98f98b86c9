"""Optimizers: which parameter decays, at which rate, and by which rule."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.config import OptimConfig, check
from vit.models.model import Model
from vit.training.muon import Muon

_OF_THREE_MATRICES = re.compile(r"(attention\.qkv|\.from_(token|context|state))\.weight$|\.weight_[ih]h_\w+$")
"""Names of weights that hold three matrices: queries, keys and values; a GRU's gates."""


def build_optimizers(model: Model, config: OptimConfig, fast_bf16: bool = False) -> list[Optimizer]:
    """One optimizer, or two for `muon`: Muon on the blocks' matrices and convolutions, AdamW on the rest.

    Every parameter group carries `lr_scale`, the factor on the scheduled rate (`layer_decay`), and `decays`.
    ValueError when nothing is trainable, when `muon` finds no matrix, and when `layer_decay` finds only one layer.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        raise ValueError("model.freeze_backbone: nothing is left to train; the model has no head")
    layers = {model.layer_of(name) for name, _ in named}
    rule = "only one layer is trained, so it has no effect; leave it at 1"
    check(config.layer_decay == 1 or len(layers) > 1, "optim.layer_decay", config.layer_decay, rule)
    if config.name != "muon":
        return [_single_optimizer(_groups(model, named, config), config)]
    exempt = model.no_weight_decay()
    matrices = {
        name for name, parameter in named if model.is_in_block(name) and parameter.ndim in (2, 4) and name not in exempt
    }
    is_frozen = any(not parameter.requires_grad for parameter in model.parameters())
    why = "no block's matrix is trained (a frozen backbone)" if is_frozen else "this model has no blocks that it knows"
    check(bool(matrices), "optim.name", config.name, f"{why}; use adamw, sgd or lamb")
    hidden = _groups(model, [pair for pair in named if pair[0] in matrices], config)
    rest = _groups(model, [pair for pair in named if pair[0] not in matrices], config)
    dtype = torch.bfloat16 if fast_bf16 else torch.float32
    optimizers: list[Optimizer] = [Muon(hidden, lr=config.lr, momentum=config.momentum, work_dtype=dtype)]
    if rest:
        optimizers.append(torch.optim.AdamW(rest, lr=config.lr, betas=config.betas, fused=True))
    return optimizers


def set_learning_rate(optimizers: list[Optimizer], rate: float) -> None:
    for group in parameter_groups(optimizers):
        group["lr"] = rate * group["lr_scale"]


def parameter_groups(optimizers: list[Optimizer]) -> Iterator[dict[str, Any]]:
    for optimizer in optimizers:
        yield from optimizer.param_groups


def _single_optimizer(groups: list[dict[str, Any]], config: OptimConfig) -> Optimizer:
    if config.name == "sgd":
        nesterov = config.momentum > 0
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov, fused=True)
    if config.name == "lamb":
        from timm.optim import Lamb

        return Lamb(groups, lr=config.lr, betas=config.betas, max_grad_norm=None)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def _groups(model: Model, named: list[tuple[str, nn.Parameter]], config: OptimConfig) -> list[dict[str, Any]]:
    """Parameters that share decay, layer and number of matrices share a group; order follows the model's."""
    exempt = model.no_weight_decay()
    grouped: dict[tuple[float, bool, int], list[Tensor]] = defaultdict(list)
    for name, parameter in named:
        scale = config.layer_decay ** (model.num_layers - model.layer_of(name))
        parts = 3 if config.name == "muon" and _OF_THREE_MATRICES.search(name) else 1
        grouped[scale, name not in exempt, parts].append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": config.weight_decay if decays else 0.0,
            "lr_scale": scale,
            **({"parts": parts} if parts > 1 else {}),
            # a matrix has its trust ratio whatever its decay (You et al. 2020, algorithm 2); timm's has none at 0
            **({"always_adapt": True} if config.name == "lamb" and decays else {}),
        }
        for (scale, decays, parts), parameters in grouped.items()
    ]
