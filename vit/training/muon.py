"""Muon: momentum, orthogonalised (Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025).

Each update is the nearest semi-orthogonal matrix to the momentum, found by five Newton–Schulz steps. Two things differ
from torch's and timm's: matrices of one shape are orthogonalised together in one batched product, and the products
run in bfloat16 only on a device that computes it (elsewhere bfloat16 is emulated and cost a third of a training step).
Only matrices belong here, and convolutions as matrices of their windows, `c (k kh kw)`; everything else is AdamW's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from vit.sharding import full_tensor, shard_like

_QUINTIC = (3.4445, -4.7750, 2.0315)
_RMS_OF_ADAMW = 0.2  # what an AdamW update's root mean square is in practice (arXiv 2502.16982, section 2.2)


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Newton–Schulz iteration on (batch, rows, columns): singular values go to about 1, singular vectors stay.

    The quintic's coefficients are Jordan's: singular values end between 0.7 and 1.2, not at 1, which is enough.
    """
    a, b, c = _QUINTIC
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """SGD with Nesterov momentum whose updates are orthogonalised and scaled to the size of AdamW's.

    A parameter of shape (parts · rows, columns) in a group with `parts` above 1 (a fused query-key-value projection, a
    GRU's gates) is treated as that many matrices. ValueError for a parameter that is neither a matrix nor a
    convolution's kernel.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        work_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.work_dtype = work_dtype
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "parts": 1})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim not in (2, 4):
                    shape = tuple(parameter.shape)
                    raise ValueError(f"Muon takes matrices and convolutions; got a parameter of shape {shape}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "Muon does not re-evaluate the loss"
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        # of a sharded matrix every process orthogonalises the whole, and takes its part of the answer
        directions = [full_tensor(direction) for direction in self._nesterov_momentum(parameters, group["momentum"])]
        rows, columns = parameters[0].shape[0] // group["parts"], parameters[0].shape[1:].numel()
        stacked = torch.stack(directions).to(self.work_dtype).reshape(-1, rows, columns)
        orthogonal = orthogonalize(stacked).to(parameters[0].dtype).reshape(len(parameters), *parameters[0].shape)
        updates = [shard_like(update, parameter) for parameter, update in zip(parameters, orthogonal, strict=True)]
        scale = _RMS_OF_ADAMW * max(rows, columns) ** 0.5
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, updates, alpha=-group["lr"] * scale)

    def _nesterov_momentum(self, parameters: list[Tensor], momentum: float) -> Sequence[Tensor]:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        buffers = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            buffers.append(state["momentum_buffer"])
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        return torch._foreach_lerp(gradients, buffers, momentum)
