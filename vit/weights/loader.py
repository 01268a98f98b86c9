"""Tensors into a model: translated by their layout, resized to the grid, checked to the last one. Knows no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from einops import rearrange
from torch import Tensor, nn

from vit.config import ViTConfig
from vit.layers.positions import resize_grid
from vit.models import Classifier
from vit.weights.grids import Grid, check_grid, read_grid
from vit.weights.layout import Layout, apply, kept
from vit.weights.layouts import find_layout, refuse_unsupported
from vit.weights.report import LoadReport

_HEADS = ("head.", "distillation_head.", "fc.")


def load_weights(
    model: Classifier,
    source: dict[str, Tensor],
    name: str,
    *,
    source_grid: Grid | None = None,
    new_head: bool = False,
    layout: Layout | None = None,
) -> LoadReport:
    """Put `source` (a known layout's names or ours) into the model.

    `source_grid`: the patch grid its positions were learned on; None: the model's if the count fits, else a square.
    `new_head`: leave the head at its first values. A model without a head takes none. `layout`: whose names these are;
    None: found by them. ValueError for a tensor left over, missing, of another shape, of whole numbers or not finite,
    for another number of classes without `new_head`, and for a grid that cannot be told.
    """
    report = LoadReport(source=name, num_source=len(source))
    config = model.config
    if isinstance(config, ViTConfig):
        refuse_unsupported(source, name)
        layout = layout or find_layout(source)
        check_numbers(source if layout is None else kept(layout, source), model, name)
        source = _translate(layout, source, config, report)
        source = _resize_positions(source, model.state_dict(), config, source_grid, report)
    else:
        check_numbers(source, model, name)
    target = model.state_dict()
    heads = tuple(f"{head}." for head in model.head_names())
    if new_head or not heads:
        report.replaced = [key for key in target if key.startswith(heads)]
        report.ignored = [key for key in source if key.startswith(_HEADS) and key not in report.replaced]
        source = {key: value for key, value in source.items() if not key.startswith(_HEADS)}
    _check_classes(source, target, heads, name)
    load_exactly(model, source, report)
    return report


def load_exactly(model: nn.Module, source: dict[str, Tensor], report: LoadReport) -> None:
    """Put tensors under the model's own names into it, and say so in `report`.

    ValueError for a tensor left over, missing (unless `report.replaced` has it) or of another shape.
    """
    target = model.state_dict()
    report.left_over = sorted({*report.left_over, *source} - set(target))
    report.missing = [key for key in target if key not in source and key not in report.replaced]
    report.check()
    for key, value in source.items():
        if value.shape != target[key].shape:
            raise ValueError(
                f"model.pretrained: {report.source}: {key} has shape {tuple(value.shape)}, "
                f"the model's is {tuple(target[key].shape)}"
            )
    report.cast = _casts(source, target)
    report.loaded = sorted(source)
    report.actions = {key: action for key, action in report.actions.items() if key in source}
    model.load_state_dict(source, strict=False)


def check_numbers(source: Mapping[str, Tensor], model: nn.Module, name: str) -> None:
    """ValueError naming the first tensor that is not of floating point, except a count of the model's own (batches that
    a norm has seen), or that has a number that is not finite."""
    counts = {key for key, tensor in model.state_dict().items() if not tensor.is_floating_point()}
    for key, tensor in source.items():
        if not tensor.is_floating_point() and key not in counts:
            kind = _word(tensor.dtype)
            raise ValueError(f"model.pretrained: {name}: {key} is of the type {kind}; weights are of floating point")
        if not _is_finite(tensor):
            raise ValueError(f"model.pretrained: {name}: {key} has numbers that are not finite (NaN or infinite)")


def _is_finite(tensor: Tensor) -> bool:
    """In one pass: the extremes of a tensor with a NaN are NaN."""
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return True
    extremes = torch.aminmax(tensor.detach() if tensor.itemsize > 1 else tensor.detach().float())
    return bool(extremes.min.isfinite() and extremes.max.isfinite())


def _casts(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> dict[str, int]:
    changes = ((value.dtype, target[key].dtype) for key, value in source.items())
    return dict(Counter(f"{_word(theirs)} → {_word(ours)}" for theirs, ours in changes if theirs != ours))


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _translate(
    layout: Layout | None, source: dict[str, Tensor], config: ViTConfig, report: LoadReport
) -> dict[str, Tensor]:
    if layout is None:
        return source
    try:
        applied = apply(layout, source, config)
    except ValueError as error:
        raise ValueError(f"model.pretrained: {report.source}: {error}; is model.name the right one?") from error
    report.layout, report.actions, report.dropped = layout.name, applied.actions, applied.dropped
    report.note = layout.when_resized
    report.left_over = applied.left_over
    return applied.tensors


def _check_classes(source: dict[str, Tensor], target: dict[str, Tensor], heads: tuple[str, ...], name: str) -> None:
    for key in (key for key in target if key.startswith(heads) and key in source):
        theirs, ours = source[key].shape[0], target[key].shape[0]
        if theirs != ours:
            raise ValueError(
                f"model.new_head: False is not valid: {name} has {theirs} classes and the data {ours}; "
                "set model.new_head true to train a new head"
            )


def _resize_positions(
    source: dict[str, Tensor],
    target: dict[str, Tensor],
    config: ViTConfig,
    grid: Grid | None,
    report: LoadReport,
) -> dict[str, Tensor]:
    """Learned positions on the model's grid; every kind keeps its own axes."""
    resized = dict(source)
    new = config.grid_size
    if "positions.grid" in source and "positions.grid" in target:
        old = _learned_grid(source, config, grid, report.source)
        resized["positions.grid"] = resize_grid(source["positions.grid"], old, new)
        _note(report, "positions.grid", old, new)
    for key, size in (("positions.rows", (new[0], 1)), ("positions.columns", (new[1], 1))):
        if key in source:
            old = (source[key].shape[0], 1)
            resized[key] = resize_grid(source[key][None], old, size)[0]
            _note(report, key, old, size)
    if "positions.table" in source:
        table = source["positions.table"]
        depth, _, rows, columns = table.shape
        size = (2 * new[0] - 1, 2 * new[1] - 1)
        flat: Tensor = rearrange(table, "l h dr dc -> 1 (dr dc) (l h)")
        flat = resize_grid(flat, (rows, columns), size)
        resized["positions.table"] = rearrange(flat, "1 (dr dc) (l h) -> l h dr dc", dr=size[0], l=depth)
        _note(report, "positions.table", (rows, columns), size)
    return resized


def _learned_grid(source: dict[str, Tensor], config: ViTConfig, grid: Grid | None, name: str) -> Grid:
    prefix = source.get("positions.prefix")
    placed = 0 if prefix is None else prefix.shape[1]
    rows = source["positions.grid"].shape[1] + placed
    if grid is not None:
        return check_grid(rows, placed, grid, name)
    tokens = config.num_placed_tokens or int(config.class_token) + int(config.distillation_token)
    return read_grid(rows, placed=placed, tokens=tokens, wanted=config.grid_size, name=name)


def _note(report: LoadReport, key: str, old: Grid, new: Grid) -> None:
    if old != new:
        report.resized[key] = f"{old[0]}×{old[1]} → {new[0]}×{new[1]}"
