"""A session's state as a checkpoint and back: weights, averages, optimizers, counters. Files are `vit/runs.py`'s."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.sharding import gather_whole, load_whole, part_like
from vit.training.averaging import WeightAverage


@dataclass
class Progress:
    """Everything that changes from step to step besides tensors."""

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    samples_seen: int = 0
    seconds: float = 0.0
    """Time spent training, evaluation left out."""
    window: dict[str, float] = field(
        default_factory=lambda: {"loss": 0.0, "hits": 0.0, "normalizer": 0.0, "samples": 0.0, "seconds": 0.0}
    )
    """Sums since the last logged line."""
    best: dict[str, float] | None = None
    """Step and value of the best validation so far, by the task's goal."""


def gather_tensors(
    accelerator: Accelerator, model: nn.Module, optimizers: list[Optimizer], average: WeightAverage | None
) -> dict[str, dict[str, Tensor]]:
    """Named tensors of a checkpoint. Called by every process: what is sharded is collected on the main one."""
    bare = accelerator.unwrap_model(model)
    tensors = {"model": bare.state_dict(), "optimizer": _optimizer_state(bare, optimizers)}
    if average is not None:
        tensors["ema"] = average.tensors
    return {group: gather_whole(named, accelerator.is_main_process) for group, named in tensors.items()}


def scatter_tensors(
    accelerator: Accelerator,
    model: nn.Module,
    optimizers: list[Optimizer],
    average: WeightAverage | None,
    tensors: dict[str, dict[str, Tensor]],
) -> None:
    """Put a checkpoint's tensors back where `gather_tensors` found them."""
    bare = accelerator.unwrap_model(model)
    load_whole(bare, tensors["model"])
    _load_optimizer_state(bare, optimizers, tensors["optimizer"])
    if average is not None:
        average.load(tensors["ema"])


def scaler_state(accelerator: Accelerator) -> dict[str, Any] | None:
    return accelerator.scaler.state_dict() if accelerator.scaler is not None else None


def progress_from(state: dict[str, Any]) -> Progress:
    return Progress(**state["progress"])


def progress_to(progress: Progress) -> dict[str, Any]:
    return asdict(progress)


def _names(model: nn.Module) -> dict[Tensor, str]:
    """Taken from the state: `named_parameters` of a sharded model may have just been joined for a forward pass."""
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
        bare = _bare(optimizer)
        for index, group in enumerate(bare.param_groups):
            if f"{number}/{index}" in entries:
                step = entries[f"{number}/{index}"]["step"]
                group["step"] = step.clone() if step.is_floating_point() else int(step)  # as timm's release has it
            for parameter in group["params"]:
                saved = entries.get(names[parameter], {})
                if saved:
                    bare.state[parameter] = {key: _place(key, value, parameter, group) for key, value in saved.items()}


def _bare(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside Accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _place(key: str, value: Tensor, parameter: Tensor, group: dict[str, Any]) -> Tensor:
    """On the parameter's device; the step counters of torch's optimizers that are not fused stay on the CPU."""
    stays = key == "step" and not group.get("fused")
    placed = value.clone() if stays else value.to(parameter.device, copy=True)
    return part_like(placed, parameter) if value.shape == parameter.shape else placed
