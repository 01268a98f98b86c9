"""What a layout is, and how one is applied: a table of names, read in both directions.

A `Rule` says which of our tensors are which of theirs; a `Layout` is all rules of one library's files. `apply` turns
their tensors into ours, `invert` ours into theirs, by the same rules, and the round trip is bitwise. This module knows
no library, no file and no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from vit.config import ViTConfig

Tensors = Mapping[str, Tensor]
Forward = Callable[[Tensor], Tensor]
PLACEHOLDERS = {"layer": r"\d+", "kind": "weight|bias"}
"""What `{layer}` and `{kind}` stand for in a template of names."""


def always(config: ViTConfig) -> bool:  # noqa: ARG001
    return True


@dataclass(frozen=True)
class Rule:
    """Tensors of ours that are tensors of theirs. Names are templates with `{layer}` and `{kind}` (weight or bias).

    Each of theirs is rearranged by `pattern`, then all are joined along `axis` and cut into ours; several theirs for
    one of ours is a fusion, one for several a split.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    pattern: str = ""
    """einops' pattern from one of theirs to ours; `h` in it is the number of heads. Empty: as it is."""
    axis: int = 0
    num_first: Callable[[ViTConfig], int] | None = None
    """Length of the first of two of ours along `axis`; None: all pieces are equal."""
    when: Callable[[ViTConfig], bool] = always
    """Of which architectures the rule speaks."""

    @property
    def action(self) -> str:
        """What becomes of a tensor: `copied`, `reshaped`, `fused` or `split`."""
        if len(self.ours) != len(self.theirs):
            return "fused" if len(self.theirs) > 1 else "split"
        return "reshaped" if self.pattern else "copied"


def copied(ours: str, theirs: str, *, when: Callable[[ViTConfig], bool] = always) -> Rule:
    """The same tensor under another name."""
    return Rule((ours,), (theirs,), when=when)


def reshaped(ours: str, theirs: str, pattern: str, *, when: Callable[[ViTConfig], bool] = always) -> Rule:
    """The same numbers in another shape; `pattern` goes from theirs to ours."""
    return Rule((ours,), (theirs,), pattern, when=when)


def fused(ours: str, theirs: tuple[str, ...], pattern: str = "") -> Rule:
    """Several of theirs, one after another, are one of ours: queries, keys and values."""
    return Rule((ours,), theirs, pattern)


def split(ours: tuple[str, ...], theirs: str, *, when: Callable[[ViTConfig], bool] = always) -> Rule:
    """One of theirs holds several of ours, one after another, of equal lengths."""
    return Rule(ours, (theirs,), when=when)


def positions(theirs: str, pattern: str = "") -> tuple[Rule, Rule]:
    """One table of theirs: the prefix tokens' learned positions, where there are such, and the grid's."""
    both = ("positions.prefix", "positions.grid")
    joined = Rule(both, (theirs,), pattern, 1, lambda c: c.num_placed_tokens, lambda c: c.num_placed_tokens > 0)
    return joined, Rule(("positions.grid",), (theirs,), pattern, when=lambda c: c.num_placed_tokens == 0)


@dataclass(frozen=True)
class Layout:
    """How one library writes a Vision Transformer's tensors."""

    name: str
    recognizes: Callable[[Tensors], bool]
    rules: tuple[Rule, ...]
    config: Callable[[Tensors], ViTConfig | None]
    """The architecture, as far as a file's tensors tell all of it; None: it must be named. ValueError, naming what is
    not supported."""
    peer: Callable[[ViTConfig, Tensors], Forward] | None = None
    """The library's own model of this architecture with its tensors in it: images `b 3 H W` to logits `b k`. ValueError
    for an architecture that the library does not have."""
    prefixes: tuple[str, ...] = ()
    """Taken off the names that begin with one, in this order, before anything else (wrappers such as `module.`)."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Regular expression of names (the whole name) → why such a tensor is left out on purpose."""
    when_resized: str = ""
    """What to know about positions that were resized here and not by the library; empty: it does the same."""


@dataclass
class Applied:
    """Tensors under the other side's names, and what became of each."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)
    """New name → `copied`, `reshaped`, `fused` or `split`."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Old name → why it was left out."""
    left_over: list[str] = field(default_factory=list)
    """Old names that no rule speaks of."""


def apply(layout: Layout, tensors: Tensors, config: ViTConfig) -> Applied:
    """Their tensors under our names. Nothing is raised for what is left over: that is the loader's to judge.

    ValueError for a tensor whose shape no rule of its name can take.
    """
    remaining = unwrapped(layout, tensors)
    result = Applied(dropped={name: why for name in remaining if (why := _why_dropped(layout, name))})
    for name in result.dropped:
        del remaining[name]
    for rule in (rule for rule in layout.rules if rule.when(config)):
        _move(rule.theirs, rule.ours, partial(_to_ours, rule, config=config), rule.action, remaining, result)
    result.left_over = sorted(remaining)
    return result


def invert(layout: Layout, tensors: Tensors, config: ViTConfig) -> Applied:
    """Our tensors under their names."""
    remaining = dict(tensors)
    result = Applied()
    for rule in (rule for rule in layout.rules if rule.when(config)):
        _move(rule.ours, rule.theirs, partial(_to_theirs, rule, config=config), rule.action, remaining, result)
    result.left_over = sorted(remaining)
    return result


def kept(layout: Layout, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors without the layout's prefixes and without what it leaves out on purpose."""
    return {name: tensor for name, tensor in unwrapped(layout, tensors).items() if not _why_dropped(layout, name)}


def unwrapped(layout: Layout, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors without the layout's prefixes."""
    return {_strip(name, layout.prefixes): tensor for name, tensor in tensors.items()}


def _strip(name: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    return name


def _why_dropped(layout: Layout, name: str) -> str | None:
    return next((why for pattern, why in layout.dropped.items() if re.fullmatch(pattern, name)), None)


def _move(
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    convert: Callable[[list[Tensor]], list[Tensor]],
    action: str,
    remaining: dict[str, Tensor],
    result: Applied,
) -> None:
    """Take every set of tensors that the `sources` name out of `remaining`, and put the `targets` in."""
    for binding in _bindings(sources[0], remaining):
        names = [template.format(**binding) for template in sources]
        if not all(name in remaining for name in names):
            continue
        try:
            pieces = convert([remaining[name] for name in names])
        except (RuntimeError, ValueError) as error:
            shapes = ", ".join(f"{name} {tuple(remaining[name].shape)}" for name in names)
            raise ValueError(f"{shapes} cannot be {action}: {' '.join(str(error).split())}") from error
        for name in names:
            del remaining[name]
        for template, piece in zip(targets, pieces, strict=True):
            result.tensors[template.format(**binding)] = piece
            result.actions[template.format(**binding)] = action


def _bindings(template: str, names: Mapping[str, Tensor]) -> Iterator[dict[str, str]]:
    """What the placeholders stand for in every name that the template fits."""
    expression = re.escape(template)
    for placeholder, meaning in PLACEHOLDERS.items():
        expression = expression.replace(rf"\{{{placeholder}\}}", f"(?P<{placeholder}>{meaning})")
    found = (re.fullmatch(expression, name) for name in list(names))
    return (match.groupdict() for match in found if match)


def _to_ours(rule: Rule, pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:
    if rule.pattern:
        pieces = [_rearrange(piece, rule.pattern, config) for piece in pieces]
    whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=rule.axis)
    return _cut(rule, whole, len(rule.ours), config)


def _to_theirs(rule: Rule, pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:
    whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=rule.axis)
    theirs = [whole] if len(rule.theirs) == 1 else _equal(whole, len(rule.theirs), rule.axis)
    if rule.pattern:
        left, right = rule.pattern.split("->")
        theirs = [_rearrange(piece, f"{right.strip()} -> {left.strip()}", config) for piece in theirs]
    return theirs


def _cut(rule: Rule, whole: Tensor, count: int, config: ViTConfig) -> list[Tensor]:
    if count == 1:
        return [whole]
    if rule.num_first is None:
        return _equal(whole, count, rule.axis)
    first = rule.num_first(config)
    return [piece.contiguous() for piece in whole.split([first, whole.shape[rule.axis] - first], dim=rule.axis)]


def _equal(whole: Tensor, count: int, axis: int) -> list[Tensor]:
    if whole.shape[axis] % count:
        raise ValueError(f"{whole.shape[axis]} rows are not {count} equal parts")
    return [piece.contiguous() for piece in whole.chunk(count, dim=axis)]


def _rearrange(tensor: Tensor, pattern: str, config: ViTConfig) -> Tensor:
    heads = {"h": config.num_heads} if re.search(r"\bh\b", pattern) else {}
    return rearrange(tensor, pattern, **heads).contiguous()
