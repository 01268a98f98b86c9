"""Whether attention was read in all of a model's blocks, and not in some of them only.

Blocks are what stands beside each other in one list (`nn.ModuleList`, `nn.Sequential`). Where attention was read in one
of them, it must be in every other that is called, unless that is of another class and holds no module whose class or
name has "att" in it: a stage of convolutions may stand beside one of attention, a class of attention that is not known
may not. A block whose attention was taken out is refused too. Knows no attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torch import nn

LISTS = (nn.ModuleList, nn.Sequential)


@contextmanager
def all_blocks(model: nn.Module, read: set[str]) -> Iterator[None]:
    """ValueError at the end where modules called inside should be in `read`, which has names, and are not."""
    lists = [(place, module) for place, module in model.named_modules() if isinstance(module, LISTS)]
    called: set[str] = set()
    handles = []
    try:
        for place, blocks in lists:
            for name, block in _named(place, blocks).items():
                handles.append(block.register_forward_hook(partial(_note, called, name)))
        yield
    finally:
        for handle in handles:
            handle.remove()
    missed = [name for place, blocks in lists for name in _missed(_named(place, blocks), called, read)]
    if missed:
        kinds = sorted({type(model.get_submodule(name)).__name__ for name in missed})
        raise ValueError(
            f"capture: {type(model).__name__} is not valid: no attention of a class that can be read was computed in "
            f"{', '.join(missed)} ({', '.join(kinds)}), and in others beside was"
        )


def _note(called: set[str], name: str, *_: object) -> None:
    called.add(name)


def _named(place: str, blocks: nn.Module) -> dict[str, nn.Module]:
    return {f"{place}.{name}".lstrip("."): block for name, block in blocks.named_children()}


def _missed(blocks: dict[str, nn.Module], called: set[str], read: set[str]) -> list[str]:
    with_attention = {name for name in blocks if any(_holds(name, each) for each in read)}
    kinds = {type(blocks[name]) for name in with_attention}
    return [
        name
        for name, block in blocks.items()
        if kinds and name in called and name not in with_attention and (type(block) in kinds or _has_attention(block))
    ]


def _holds(block: str, name: str) -> bool:
    return name == block or name.startswith(f"{block}.")


def _has_attention(block: nn.Module) -> bool:
    return any("att" in f"{name} {type(module).__name__}".lower() for name, module in block.named_modules())
