"""Queries, keys and values of every self-attention layer of any ViT, one layer at a time, with proof.

The module's output is rebuilt from the captured vectors and compared with its actual output, in every layer of every
pass (`proof`); vectors that do not explain it are refused, and so is a pass in which only some of a model's blocks were
read (`coverage`). No layer is kept: a consumer sees each one during the pass, and the model computes its attention as
ever. Nothing in the models supports this, neither in ours nor in others. Attention between two sequences (pooling by a
query, cross-attention) is not captured. Notation: see `core.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from vit.analysis.attention_calls import PROJECTIONS, Call, Heads, Reader, Rows, attention_reader, known_attention
from vit.analysis.coverage import require_all_blocks
from vit.analysis.model_structure import check_images, patch_grid
from vit.analysis.proof import prove_attention_output
from vit.analysis.unsupported import Unsupported
from vit.attention.core import attention_weights
from vit.config import check_arguments
from vit.evaluation.evaluate import evaluating


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionLayer:
    """One call of one self-attention module. Gradients flow through it where the pass has them."""

    name: str
    """The module's name in the model, as `blocks.3.attention`."""
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
    """b n c, the module's input."""
    output: Tensor
    """b n c, its output, before a residual connection; of a block that computes attention itself, the block's."""
    difference: float
    """The largest difference between `output` and its reconstruction, relative to the change that a wrong map would
    make (see `proof`)."""
    finish: Callable[[Tensor, Rows], Tensor]
    """The module's computation after attending, `b h r v -> b r c`, for the queries `rows`; all: `slice(None)`."""
    window: tuple[int, int] | None = None
    """Rows and columns of the map that it attends in, where it was given one."""

    @property
    def step(self) -> str:
        """The same for modules that compute at once, which are one layer together: timm's `blocks.3.attns.0.attn`."""
        return self.name.partition(".attns.")[0]

    def weights(self) -> Tensor:
        """The map, `b h n m`: all of it in memory."""
        return attention_weights(self.query, self.key, mask=self.mask, bias=self.bias, scale=self.scale)


Consume = Callable[[AttentionLayer], None]


@check_arguments
def capture_attention(model: nn.Module, images: Tensor, consume: Consume) -> Any:
    """Return the model's output for `b 3 H W`, in evaluation mode; `consume` is given each layer once it has computed.

    Gradients are on or off as around the call. Raises Unsupported as `capturing` does.
    """
    check_images(model, images)

    def consume_whole(layer: AttentionLayer) -> None:
        _require_whole_image(model, images, layer)
        consume(layer)

    with evaluating(model), capturing(model, consume_whole):
        return model(images)


def _require_whole_image(model: nn.Module, images: Tensor, layer: AttentionLayer) -> None:
    """Unsupported for a layer that attends in windows: the whole image has no map."""
    if layer.window is None:
        return
    grid = patch_grid(model, (images.shape[2], images.shape[3]))
    if (len(layer.query), layer.window) != (len(images), grid):
        (rows, columns), (gh, gw) = layer.window, grid
        rule = f"it attends in windows of {rows}×{columns}, and has no map of all {gh}×{gw} patches"
        raise Unsupported(f"capture: {layer.name} is not valid: {rule}")


@contextmanager
def capturing(model: nn.Module, consume: Consume) -> Iterator[None]:
    """Give every self-attention layer that is called inside to `consume`, in order.

    Unsupported where no layer is of a known class or none is called, where a rebuilt output is not the module's or
    would be with another map too (`proof`), and where attention was read in some of the blocks only (`coverage`). The
    hooks are removed in any case.
    """
    found = [(name, module, reader) for name, module in model.named_modules() if (reader := attention_reader(module))]
    if not found:
        names = sorted({type(module).__name__ for module in model.modules() if "Att" in type(module).__name__})
        if not names:
            raise Unsupported(f"no attention was found in this {type(model).__name__}")
        there = f"; it has {', '.join(names)}"
        rule = f"no attention of a class that can be read{there}; known are those of {known_attention()}"
        raise Unsupported(f"capture: {type(model).__name__} is not valid: {rule}")
    read: set[str] = set()  # modules that were called, self-attention or not
    with ExitStack() as hooks:
        hooks.enter_context(require_all_blocks(model, read))
        layers = _Layers(consume, read)
        for name, module, reader in found:
            projected: dict[str, Tensor] = {}
            for child_name, child in module.named_children():
                if child_name in PROJECTIONS:
                    keep = partial(_keep_output, projected, child_name)
                    hooks.callback(child.register_forward_hook(keep).remove)
            hook = partial(layers.read_call, name, reader, projected)
            hooks.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield
    if not layers.count:
        called = ", ".join(name for name, _, _ in found[:3])
        raise Unsupported(f"capture: {type(model).__name__} is not valid: no self-attention was computed in {called} …")


class _Layers:
    """The layers of a pass, each proved and given to `consume`."""

    def __init__(self, consume: Consume, read: set[str]) -> None:
        self.consume = consume
        self.read = read
        self.count = 0

    def read_call(
        self,
        name: str,
        reader: Reader,
        projected: dict[str, Tensor],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> Any:
        """The hook's answer: None, or the same result made from the tokens `b n c` that the layer has, so that these
        are part of the graph.
        """
        call = Call(module, args, kwargs, dict(projected))
        projected.clear()
        heads = reader(call)
        self.read.add(name)
        if heads is None:
            return None
        given = result[0] if isinstance(result, tuple) else result
        output = _as_tokens(given, heads)
        fields = {field: value for field, value in heads._asdict().items() if field != "batch_first"}
        difference = prove_attention_output(name, heads, output)
        layer = AttentionLayer(name=name, index=self.count, output=output, difference=difference, **fields)
        self.count += 1
        self.consume(layer)
        if output is given:
            return None
        again = _as_given(output, heads)
        return (again, *result[1:]) if isinstance(result, tuple) else again


def _as_tokens(output: Tensor, heads: Heads) -> Tensor:
    """A module's output as `b n c`."""
    if heads.window is not None:
        return rearrange(output, "b gh gw c -> b (gh gw) c")
    return output if heads.batch_first else output.transpose(0, 1)  # b n c


def _as_given(tokens: Tensor, heads: Heads) -> Tensor:
    """The inverse of `_as_tokens`."""
    if heads.window is not None:
        return rearrange(tokens, "b (gh gw) c -> b gh gw c", gh=heads.window[0])
    return tokens if heads.batch_first else tokens.transpose(0, 1)  # n b c


def _keep_output(projected: dict[str, Tensor], name: str, _module: nn.Module, _args: Any, output: Tensor) -> None:
    projected[name] = output
