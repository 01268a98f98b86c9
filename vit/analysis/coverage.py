"""The check that attention was read in all of a model's blocks, and not in some of them only.

Blocks are what stands beside each other in one list (`nn.ModuleList`, `nn.Sequential`). Where attention was read in one
of them, it must be in every other that is called, unless that is of another class and holds no module whose class or
name has "att" in it: a stage of convolutions may stand beside one of attention, a class of attention that is not known
may not. A block whose attention was taken out is refused too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import nn

from vit.analysis.unsupported import Unsupported

LISTS = (nn.ModuleList, nn.Sequential)


@contextmanager
def require_all_blocks(model: nn.Module, read: set[str]) -> Iterator[None]:
    """Unsupported at the end where a block called inside has attention that is not in `read`, the names of modules."""
    lists = [
        {f"{place}.{name}".lstrip("."): block for name, block in blocks.named_children()}
        for place, blocks in model.named_modules()
        if isinstance(blocks, LISTS)
    ]
    called: set[str] = set()
    with ExitStack() as hooks:
        for blocks in lists:
            for name, block in blocks.items():
                hooks.callback(block.register_forward_hook(partial(_note, called, name)).remove)
        yield
    missed = [name for blocks in lists for name in _missed(blocks, called, read)]
    if missed:
        kinds = sorted({type(model.get_submodule(name)).__name__ for name in missed})
        raise Unsupported(
            f"capture: {type(model).__name__} is not valid: no attention of a class that can be read was computed in "
            f"{', '.join(missed)} ({', '.join(kinds)}), and in others beside was"
        )


def _note(called: set[str], name: str, *_: object) -> None:
    called.add(name)


def _missed(blocks: dict[str, nn.Module], called: set[str], read: set[str]) -> list[str]:
    """The blocks of one list that were called and not read, though their class or a name in them means attention."""
    with_attention = {name for name in blocks if any(each == name or each.startswith(f"{name}.") for each in read)}
    kinds = {type(blocks[name]) for name in with_attention}

    def names_attention(block: nn.Module) -> bool:
        return any("att" in f"{name} {type(module).__name__}".lower() for name, module in block.named_modules())

    return [
        name
        for name, block in blocks.items()
        if kinds and name in called and name not in with_attention and (type(block) in kinds or names_attention(block))
    ]
