"""A session's tensors as a checkpoint has them, and back: weights, averages, optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.sharding import gather_full, load_full, shard_like
from vit.training.session import Session


def gather_tensors(session: Session) -> dict[str, dict[str, Tensor]]:
    """Named tensors of a checkpoint. Called by every process: what is sharded is collected on the main one."""
    model = session.unwrapped_model
    tensors = {"model": model.state_dict(), "optimizer": _optimizer_state(model, session.optimizers)}
    if session.average is not None:
        tensors["ema"] = session.average.tensors
    return {group: gather_full(named, session.is_main) for group, named in tensors.items()}


def scatter_tensors(session: Session, tensors: dict[str, dict[str, Tensor]]) -> None:
    """Put a checkpoint's tensors back where `gather_tensors` found them."""
    model = session.unwrapped_model
    load_full(model, tensors["model"])
    _load_optimizer_state(model, session.optimizers, tensors["optimizer"])
    if session.average is not None:
        session.average.load(tensors["ema"])


def _names(model: nn.Module) -> dict[Tensor, str]:
    """Parameter → name, from the state: after a forward pass a sharded model's `named_parameters` may be whole."""
    return {parameter: name for name, parameter in model.state_dict(keep_vars=True).items()}


def _optimizer_state(model: nn.Module, optimizers: list[Optimizer]) -> dict[str, Tensor]:
    """`parameter/entry` → tensor. Counts that an optimizer keeps as numbers become tensors of one element."""
    names = _names(model)
    flat: dict[str, Tensor] = {}
    for number, optimizer in enumerate(optimizers):
        for parameter, entries in optimizer.state.items():
            for key, value in entries.items():
                flat[f"{names[parameter]}/{key}"] = torch.as_tensor(value)
        for index, group in enumerate(optimizer.param_groups):
            if "step" in group:  # LAMB counts a group's steps, not a parameter's
                flat[f"{number}/{index}/step"] = torch.as_tensor(group["step"])
    return flat


def _load_optimizer_state(model: nn.Module, optimizers: list[Optimizer], flat: dict[str, Tensor]) -> None:
    names = _names(model)
    entries: dict[str, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        owner, _, entry = key.rpartition("/")
        entries.setdefault(owner, {})[entry] = tensor
    for number, optimizer in enumerate(optimizers):
        bare = getattr(optimizer, "optimizer", optimizer)  # inside Accelerate's wrapper
        for index, group in enumerate(bare.param_groups):
            if f"{number}/{index}" in entries:
                step = entries[f"{number}/{index}"]["step"]
                group["step"] = step.clone() if step.is_floating_point() else int(step)  # as timm's release has it
            for parameter in group["params"]:
                saved = entries.get(names[parameter], {})
                if saved:
                    bare.state[parameter] = {key: _place(key, value, parameter, group) for key, value in saved.items()}


def _place(key: str, value: Tensor, parameter: Tensor, group: dict[str, Any]) -> Tensor:
    """Move a state to the parameter's device; step counters of optimizers that are not fused stay on the CPU."""
    stays = key == "step" and not group.get("fused")
    placed = value.clone() if stays else value.to(parameter.device, copy=True)
    return shard_like(placed, parameter) if value.shape == parameter.shape else placed
