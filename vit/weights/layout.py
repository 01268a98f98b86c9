"""Layouts: tables that map another library's tensors to ours, and back.

A `Rule` maps some of their tensors to some of ours; a `Layout` holds all rules of one library's files. `apply` turns
their tensors into ours and `invert` ours into theirs, by the same rules; the round trip is bitwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from vit.config import PositionResize, ResNetConfig, ViTConfig

Tensors = Mapping[str, Tensor]
Forward = Callable[[Tensor], Tensor]
MASK_TOKEN = "stands for masked patches in pre-training"
MAE_DECODER = "MAE's decoder, which reconstructs pixels"
TEXT_TOWER = "the text tower of the model"
EMPTY = "holds no numbers"
"""Reasons for which several layouts drop tensors."""
PLACEHOLDERS = {"layer": r"\d+", "block": r"\d+", "kind": "weight|bias", "rest": r"[\w.]+"}
"""Regular expressions for placeholders, such as `{layer}`, in a template of names."""
LAYERS = "{layers}"
"""In a name of theirs: all layers in turn."""
Architecture = ViTConfig | ResNetConfig


def always(config: Architecture) -> bool:  # noqa: ARG001
    return True


def is_gated(config: ViTConfig) -> bool:
    return config.feedforward == "swiglu"


def is_plain(config: ViTConfig) -> bool:
    return config.feedforward != "swiglu"


@dataclass(frozen=True)
class Rule:
    """Maps their tensors to ours. Names are templates with `{layer}` and `{kind}` (weight or bias).

    One of their names with `{layers}` stands for those of all layers, in order: tensors that are one for us.
    Their tensors are rearranged by `pattern`, concatenated along `axis` and split into ours: several for one of ours
    are fused, one for several is split.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    pattern: str = ""
    """An einops pattern from theirs to ours; `h` is the number of heads. Empty: unchanged."""
    axis: int = 0
    num_first: Callable[[Any], int] | None = None
    """Length along `axis` of the first of two of our tensors; None: equal lengths."""
    when: Callable[[Any], bool] = always
    """Configs, of the kind that the layout is of, this rule applies to."""
    to_ours: Callable[[list[Tensor], Any], list[Tensor]] | None = None
    to_theirs: Callable[[list[Tensor], Any], list[Tensor]] | None = None
    """Instead of `pattern` and `axis`, where these cannot express the change; each undoes the other."""

    @property
    def action(self) -> str:
        """`copied`, `reshaped`, `reordered`, `fused` or `split`."""
        if len(self.ours) != len(self.theirs):
            return "fused" if len(self.theirs) > 1 else "split"
        return "reordered" if self.to_ours else "reshaped" if self.pattern else "copied"

    def for_depth(self, depth: int) -> Rule:
        """The rule with the names of all of that many layers in place of one with `{layers}`."""
        counts = {name: depth if LAYERS in name else 1 for name in self.theirs}
        names = (name.replace(LAYERS, str(layer)) for name, count in counts.items() for layer in range(count))
        return replace(self, theirs=tuple(names))


def copied(ours: str, theirs: str, *, when: Callable[[Any], bool] = always) -> Rule:
    """Copy a tensor to another name."""
    return Rule((ours,), (theirs,), when=when)


def reshaped(ours: str, theirs: str, pattern: str, *, when: Callable[[Any], bool] = always) -> Rule:
    """Change the shape of a tensor; `pattern` goes from theirs to ours."""
    return Rule((ours,), (theirs,), pattern, when=when)


def fused(ours: str, theirs: tuple[str, ...], pattern: str = "") -> Rule:
    """Concatenate several of their tensors, such as queries, keys and values, into one of ours."""
    return Rule((ours,), theirs, pattern)


def split(ours: tuple[str, ...], theirs: str, *, when: Callable[[Any], bool] = always) -> Rule:
    """Split one of their tensors into several of ours, of equal lengths."""
    return Rule(ours, (theirs,), when=when)


def patch_rows(theirs: str) -> tuple[Rule, Rule]:
    """A linear layer on the pixels of a patch, `c (ph pw k)`, as the convolution of the same weights."""
    ours = "embedding.projection."

    def to_ours(pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:
        ph, pw = config.patch_size
        return [rearrange(pieces[0], "c (ph pw k) -> c k ph pw", ph=ph, pw=pw).contiguous()]

    def to_theirs(pieces: list[Tensor], config: ViTConfig) -> list[Tensor]:  # noqa: ARG001
        return [rearrange(pieces[0], "c k ph pw -> c (ph pw k)").contiguous()]

    weight = Rule((f"{ours}weight",), (f"{theirs}.weight",), to_ours=to_ours, to_theirs=to_theirs)
    return weight, copied(f"{ours}bias", f"{theirs}.bias")


def positions(theirs: str, pattern: str = "") -> tuple[Rule, Rule]:
    """Split their table of positions into those of prefix tokens, if they have any, and those of the grid."""
    both = ("positions.prefix", "positions.grid")
    joined = Rule(both, (theirs,), pattern, 1, lambda c: c.num_placed_tokens, lambda c: c.num_placed_tokens > 0)
    return joined, Rule(("positions.grid",), (theirs,), pattern, when=lambda c: c.num_placed_tokens == 0)


def block_rules(layer: str, *theirs: str | tuple[str, str, str]) -> tuple[Rule, ...]:
    """Map the weights and biases of a block.

    `theirs`: the library's names, after the prefix `layer`, of norm1, qkv (one name, or three that are fused), the
    attention's output, norm2, fc1 and fc2.
    """
    ours = ("norm1", "attention.qkv", "attention.output", "norm2", "feedforward.fc1", "feedforward.fc2")
    parts = ((name,) if isinstance(name, str) else name for name in theirs)
    return tuple(
        Rule((f"blocks.{{layer}}.{name}.{{kind}}",), tuple(f"{layer}{part}" for part in names))
        for name, names in zip(ours, parts, strict=True)
    )


def shape_of(tensors: Tensors, name: str, dimensions: int) -> tuple[int, ...]:
    """The shape of a tensor. ValueError for another number of dimensions, KeyError where there is none."""
    shape = tuple(tensors[name].shape)
    if len(shape) != dimensions:
        raise ValueError(f"{name} has the shape {shape}, of {len(shape)} dimensions instead of {dimensions}")
    return shape


def any_config(config: ViTConfig, tensors: Tensors) -> bool:  # noqa: ARG001
    return True


def no_config(tensors: Tensors) -> None:
    """`Layout.config` of layouts whose tensors do not determine the architecture."""


@dataclass(frozen=True)
class Layout:
    """One library's names and shapes of the tensors of a Vision Transformer or a ResNet."""

    name: str
    recognizes: Callable[[Tensors], bool]
    rules: tuple[Rule, ...]
    config: Callable[[Tensors], Architecture | None] = no_config
    """Derives the architecture from the tensors; None if they do not determine it, so that it must be named. ValueError
    naming an unsupported part."""
    undetermined: str = "the number of heads"
    """The part of the architecture that the tensors do not determine, where `config` gives None."""
    reference: Callable[[Any, Tensors], Forward] | None = None
    """Builds the library's own model with these tensors: images `b 3 H W` to logits `b k`. ValueError for an
    architecture that the library lacks."""
    check_config: Callable[[Any], object] = always
    """ValueError for an architecture that the library lacks, though all of its tensors may have names there."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of a part of the file such as `backbone.`, removed from names in this order before anything else."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Regular expression for full names → the reason why such tensors are dropped on purpose."""
    position_resize: PositionResize = "bicubic_antialiased"
    """The library's method of resizing positions to the grid of other images (`ViTConfig.position_resize`)."""
    register_resize: PositionResize = "bicubic_antialiased"
    """The same for a model with registers, or of a class that has them, in number none."""
    own_resizes: Collection[PositionResize] = ()
    """Methods of which each model of the library has its own, which its architecture says."""
    relative_resize: PositionResize = "bicubic_antialiased"
    """The same for relative biases."""
    fits: Callable[[ViTConfig, Tensors], bool] = any_config
    """Architectures whose tensors have these names, where other layouts have the same ones."""

    def resize_of(self, config: ViTConfig, names: Iterable[str]) -> PositionResize:
        """The method for an architecture, whose file has tensors of these names."""
        if config.position_resize in self.own_resizes:
            return config.position_resize
        if config.positions == "relative":
            return self.relative_resize
        has_registers = config.num_registers > 0 or any(name.endswith("register_tokens") for name in names)
        return self.register_resize if has_registers else self.position_resize

    def has_place_for(self, name: str) -> bool:
        """Whether a rule translates a tensor of that name, or it is dropped on purpose."""
        templates = [template.replace(LAYERS, "{layer}") for rule in self.rules for template in rule.theirs]
        return _drop_reason(self, name) is not None or any(_expression(each).fullmatch(name) for each in templates)


@dataclass
class Translation:
    """Tensors under the new names, and the change of each."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    actions: dict[str, str] = field(default_factory=dict)
    """New name → `copied`, `reshaped`, `reordered`, `fused` or `split`."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Old name → the reason why it was dropped."""
    unexpected: list[str] = field(default_factory=list)
    """Old names that no rule matches."""


def apply_rules(layout: Layout, tensors: Tensors, config: Architecture) -> Translation:
    """Translate their tensors to ours. Unexpected tensors are reported, not raised: the loader decides about them.

    ValueError for a tensor whose shape does not fit the rule for its name.
    """
    remaining = strip_prefixes(layout, tensors)
    dropped = {name: why for name in remaining if (why := _drop_reason(layout, name))}
    result = Translation(dropped=dropped | {name: EMPTY for name, tensor in remaining.items() if not tensor.numel()})
    for name in result.dropped:
        del remaining[name]
    for rule in _rules_for(layout, config):
        _move(rule.theirs, rule.ours, partial(_to_ours, rule, config=config), rule.action, remaining, result)
    result.unexpected = sorted(remaining)
    return result


def invert_rules(layout: Layout, tensors: Tensors, config: Architecture) -> Translation:
    """Translate our tensors to theirs."""
    remaining = dict(tensors)
    result = Translation()
    for rule in _rules_for(layout, config):
        _move(rule.ours, rule.theirs, partial(_to_theirs, rule, config=config), rule.action, remaining, result)
    result.unexpected = sorted(remaining)
    return result


def without_dropped(layout: Layout, tensors: Tensors) -> dict[str, Tensor]:
    """Remove the layout's prefixes from names, and the tensors that it drops on purpose or that hold no numbers."""
    stripped = strip_prefixes(layout, tensors).items()
    return {name: tensor for name, tensor in stripped if tensor.numel() and not _drop_reason(layout, name)}


def strip_prefixes(layout: Layout, tensors: Tensors) -> dict[str, Tensor]:
    """Remove the layout's prefixes from names."""
    stripped = dict(tensors)
    for prefix in layout.prefixes:
        stripped = {name.removeprefix(prefix): tensor for name, tensor in stripped.items()}
    return stripped


def _rules_for(layout: Layout, config: Architecture) -> Iterator[Rule]:
    depth = config.depth if isinstance(config, ViTConfig) else 0
    return (rule.for_depth(depth) for rule in layout.rules if rule.when(config))


def _drop_reason(layout: Layout, name: str) -> str | None:
    return next((why for pattern, why in layout.dropped.items() if re.fullmatch(pattern, name)), None)


def _move(
    sources: tuple[str, ...],
    targets: tuple[str, ...],
    convert: Callable[[list[Tensor]], list[Tensor]],
    action: str,
    remaining: dict[str, Tensor],
    result: Translation,
) -> None:
    """Move every set of tensors that matches `sources` from `remaining` to the result, as `targets`."""
    for binding in _bindings(sources[0], remaining):
        names = [template.format(**binding) for template in sources]
        if not all(name in remaining for name in names):
            continue
        try:
            pieces = convert([remaining[name] for name in names])
        except (RuntimeError, ValueError, IndexError) as error:
            shapes = ", ".join(f"{name} {tuple(remaining[name].shape)}" for name in names[:3])
            shapes += ", …" if len(names) > 3 else ""
            raise ValueError(f"{shapes} cannot be {action}: {' '.join(str(error).split())}") from error
        for name in names:
            del remaining[name]
        for template, piece in zip(targets, pieces, strict=True):
            result.tensors[template.format(**binding)] = piece
            result.actions[template.format(**binding)] = action


def _bindings(template: str, names: Mapping[str, Tensor]) -> Iterator[dict[str, str]]:
    """Yield the values of the placeholders for every name that matches the template."""
    expression = _expression(template)
    matches = (expression.fullmatch(name) for name in list(names))
    return (match.groupdict() for match in matches if match)


def _expression(template: str) -> re.Pattern[str]:
    expression = re.escape(template)
    for placeholder, meaning in PLACEHOLDERS.items():
        expression = expression.replace(rf"\{{{placeholder}\}}", f"(?P<{placeholder}>{meaning})")
    return re.compile(expression)


def _to_ours(rule: Rule, pieces: list[Tensor], config: Architecture) -> list[Tensor]:
    if rule.to_ours is not None:
        return rule.to_ours(pieces, config)
    if rule.pattern:
        pieces = [_rearrange(piece, rule.pattern, config) for piece in pieces]
    whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=rule.axis)
    if len(rule.ours) == 1:
        return [whole]
    if rule.num_first is None:
        return _equal_parts(whole, len(rule.ours), rule.axis)
    first = rule.num_first(config)
    return [piece.contiguous() for piece in whole.split([first, whole.shape[rule.axis] - first], dim=rule.axis)]


def _to_theirs(rule: Rule, pieces: list[Tensor], config: Architecture) -> list[Tensor]:
    if rule.to_theirs is not None:
        return rule.to_theirs(pieces, config)
    whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=rule.axis)
    theirs = [whole] if len(rule.theirs) == 1 else _equal_parts(whole, len(rule.theirs), rule.axis)
    if rule.pattern:
        left, right = rule.pattern.split("->")
        theirs = [_rearrange(piece, f"{right.strip()} -> {left.strip()}", config) for piece in theirs]
    return theirs


def _equal_parts(whole: Tensor, count: int, axis: int) -> list[Tensor]:
    if whole.shape[axis] % count:
        raise ValueError(f"{whole.shape[axis]} rows are not {count} equal parts")
    return [piece.contiguous() for piece in whole.chunk(count, dim=axis)]


def _rearrange(tensor: Tensor, pattern: str, config: Architecture) -> Tensor:
    heads = {"h": config.num_heads} if isinstance(config, ViTConfig) and re.search(r"\bh\b", pattern) else {}
    return rearrange(tensor, pattern, **heads).contiguous()
