"""Queries, keys and values of every self-attention layer of any ViT, one layer at a time, with proof.

From what was captured the module's output is rebuilt and compared with what the module gave, in every layer of every
pass (`proof`); no statistics are made of vectors that do not explain it, nor of some of a model's blocks (`coverage`).
No layer is kept: a consumer sees each one as the pass goes by, and the model computes its attention as ever. Our own
models need nothing in them for this, nor do others. Attention between two sequences (pooling by a query,
cross-attention) is not captured. Letters: see `attend.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from vit.analysis.attention_calls import PROJECTIONS, READERS, Call, Reader, Rows, reader_of
from vit.analysis.coverage import all_blocks
from vit.analysis.proof import prove
from vit.attention.attend import attention_weights
from vit.evaluation.evaluate import evaluating


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionLayer:
    """One call of one self-attention module. Gradients flow through it where the pass has them."""

    name: str
    """Of the module in the model, as `blocks.3.attention`."""
    index: int
    """0 for the first that was called."""
    query: Tensor
    """b h n d, as it meets the keys: normalised and rotated where the model does that."""
    key: Tensor
    """b g m d"""
    value: Tensor
    """b g m v"""
    mask: Tensor | None
    """As `attend` takes it."""
    bias: Tensor | None
    scale: float
    input: Tensor
    """b n c, what the module was called with."""
    output: Tensor
    """b n c, what it gave; before a residual connection."""
    difference: float
    """The largest difference between `output` and what the captured vectors give, as a part of what a wrong map changes
    in it (see `proof`)."""
    finish: Callable[[Tensor, Rows], Tensor]
    """What the module does after attending: `b h r v -> b r c`, of the queries `rows`; all: `slice(None)`."""

    def weights(self) -> Tensor:
        """The map, `b h n m`: all of it in memory."""
        return attention_weights(self.query, self.key, mask=self.mask, bias=self.bias, scale=self.scale)


Consume = Callable[[AttentionLayer], None]


def capture(model: nn.Module, images: Tensor, consume: Consume) -> Any:
    """What the model makes of `b 3 H W`, in evaluation mode; `consume` is given each layer as it has computed.

    With or without gradients, as it is around the call. Raises ValueError as `capturing` does.
    """
    with evaluating(model), capturing(model, consume):
        return model(images)


@contextmanager
def capturing(model: nn.Module, consume: Consume) -> Iterator[None]:
    """Every self-attention layer that is called inside is given to `consume`, in order.

    ValueError where no layer is of a known class or none is called, where a rebuilt output is not the module's or would
    be with another map too (`proof`), and where attention was read in some of the blocks only (`coverage`). The hooks
    are off afterwards, whatever happens.
    """
    found = [(name, module, reader) for name, module in model.named_modules() if (reader := reader_of(module))]
    if not found:
        raise ValueError(f"capture: {type(model).__name__} is not valid: {_nothing_found(model)}")
    calls = _Calls(consume)
    with ExitStack() as hooks:
        hooks.enter_context(all_blocks(model, calls.read))
        for name, module, reader in found:
            for handle in _hooks(calls, name, module, reader):
                hooks.callback(handle.remove)
        yield
    if not calls.count:
        names = ", ".join(name for name, _, _ in found[:3])
        raise ValueError(f"capture: {type(model).__name__} is not valid: no self-attention was computed in {names} …")


class _Calls:
    """Which layers were seen, and who is to see them."""

    def __init__(self, consume: Consume) -> None:
        self.consume = consume
        self.count = 0
        self.read: set[str] = set()
        """Names of the modules that were called, self-attention or not."""


def _hooks(calls: _Calls, name: str, module: nn.Module, reader: Reader) -> Iterator[Any]:
    projected: dict[str, Tensor] = {}
    for child_name, child in module.named_children():
        if child_name in PROJECTIONS:
            yield child.register_forward_hook(partial(_keep, projected, child_name))
    yield module.register_forward_hook(partial(_read, calls, name, reader, projected), with_kwargs=True)


def _keep(projected: dict[str, Tensor], name: str, _module: nn.Module, _args: Any, output: Tensor) -> None:
    projected[name] = output


def _read(
    calls: _Calls,
    name: str,
    reader: Reader,
    projected: dict[str, Tensor],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
) -> None:
    call = Call(module, args, kwargs, dict(projected))
    projected.clear()
    heads = reader(call)
    calls.read.add(name)
    if heads is None:
        return
    output = result[0] if isinstance(result, tuple) else result
    output = output if heads.batch_first else output.transpose(0, 1)
    fields = {field: value for field, value in heads._asdict().items() if field != "batch_first"}
    difference = prove(name, heads, output)
    layer = AttentionLayer(name=name, index=calls.count, output=output, difference=difference, **fields)
    calls.count += 1
    calls.consume(layer)


def _nothing_found(model: nn.Module) -> str:
    names = sorted({type(module).__name__ for module in model.modules() if "Att" in type(module).__name__})
    there = f"; it has {', '.join(names)}" if names else ""
    return f"no attention of a class that can be read{there}; looked for {', '.join(sorted(READERS))}"
