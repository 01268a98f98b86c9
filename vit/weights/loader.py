"""Loading tensors into a model: translated by their layout, resized to the grid, each one reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor, nn

from vit.config import Grid, ViTConfig, check_arguments
from vit.layers.position_resize import resize_axis, resize_grid, resize_offsets
from vit.models import Classifier
from vit.weights.grids import check_grid, infer_grid
from vit.weights.layout import Architecture, Layout, apply_rules, strip_prefixes, without_dropped
from vit.weights.layouts import find_layout, refuse_unsupported
from vit.weights.report import LoadReport
from vit.wording import counted

FIRST_CONVOLUTIONS = ("embedding.stem.0.weight", "embedding.projection.weight", "conv1.weight", "conv1.0.weight")
"""Names of the layers that may read the pixels; with a stem, the projection does not."""
COUNT = ".num_batches_tracked"
_HEADS = ("head.", "distillation_head.", "fc.")
_POSITION_DIMENSIONS = {f"positions.{name}": 3 for name in ("grid", "prefix")}
_POSITION_DIMENSIONS |= {f"positions.{name}": 2 for name in ("rows", "columns")} | {"positions.table": 4}
"""Those of tensors that are resized, whether the model has them or not."""


@check_arguments
def load_weights(
    model: Classifier,
    source: dict[str, Tensor],
    name: str,
    *,
    source_grid: Grid | None = None,
    new_head: bool = False,
    layout: Layout | None = None,
) -> LoadReport:
    """Load `source` (named by a known layout, or as ours) into the model.

    `source_grid`: the patch grid of its positions; None: the model's if the count fits, else a square. `new_head`:
    keep the initialized head. A head in `source` is ignored if the model has none. `layout`: None, found by the names.
    ValueError for a tensor that is unexpected, missing, of another shape, not floating point or not finite, for another
    number of classes without `new_head`, and for an ambiguous grid.
    """
    report = LoadReport(source=name, num_source=len(source))
    config = model.config
    refuse_unsupported(source, name, config)
    if layout is None or (isinstance(config, ViTConfig) and not layout.fits(config, strip_prefixes(layout, source))):
        layout = find_layout(source, config) or layout  # if there is none, its names still say what does not fit
    check_numbers(source if layout is None else without_dropped(layout, source), model, name)
    source, target = _translate(layout, source, config, report), model.state_dict()
    _check_dimensions(source, target, name)
    if isinstance(config, ViTConfig):
        source = _resize_positions(source, target, config, source_grid, report)
    heads = tuple(f"{head}." for head in model.head_names())
    if new_head or not heads:
        report.replaced = [key for key in target if key.startswith(heads)]
        report.ignored = [key for key in source if key.startswith(_HEADS) and key not in report.replaced]
        source = {key: value for key, value in source.items() if not key.startswith(_HEADS)}
    _check_classes(source, target, heads, name)
    first = next((key for key in FIRST_CONVOLUTIONS if key in source and key in target), None)
    if first is not None and source[first].dim() == 4 and source[first].shape[1] != config.in_channels:
        source = source | {first: adapt_channels(source[first], config.in_channels, first, name)}
        report.actions[first] = f"adapted to {config.in_channels} channels"
    load_exactly(model, source, report)
    return report


def adapt_channels(weight: Tensor, channels: int, key: str, name: str) -> Tensor:
    """Adapt RGB weights `c 3 h w` to another number of channels, by timm's rule. ValueError for other weights.

    For one channel they are summed, so that a grey image gives the result of three equal channels; for more they are
    repeated and scaled by 3 / channels, so that the sums keep their magnitude.
    """
    if weight.shape[1] != 3:
        rule = (
            f"{key} reads {weight.shape[1]} channels, the model {channels}; only weights for 3 channels can be adapted"
        )
        raise ValueError(f"model.in_channels: {channels} is not valid: {name}: {rule}")
    if channels == 1:
        return weight.float().sum(dim=1, keepdim=True).to(weight.dtype)
    repeated = weight.float().repeat(1, -(-channels // 3), 1, 1)[:, :channels]
    return (repeated * (3 / channels)).to(weight.dtype)


def load_exactly(model: nn.Module, source: dict[str, Tensor], report: LoadReport) -> None:
    """Load tensors under the model's own names, and record it in `report`.

    ValueError for a tensor that is unexpected, missing (unless in `report.replaced`) or of another shape.
    """
    target = model.state_dict()
    report.unexpected = sorted({*report.unexpected, *source} - set(target))
    absent = [key for key in target if key not in source and key not in report.replaced]
    # as in torch: files from before version 0.4.1 have no such counts, and no computation reads them
    report.uncounted = [key for key in absent if key.endswith(COUNT)]
    report.missing = [key for key in absent if key not in report.uncounted]
    report.check(tuple(f"{name}." for name in model.head_names()) if isinstance(model, Classifier) else ())
    for key, value in source.items():
        if value.shape != target[key].shape:
            raise ValueError(
                f"model.pretrained: {report.source}: {key} has shape {tuple(value.shape)}, "
                f"the model's is {tuple(target[key].shape)}"
            )
    changes = ((value.dtype, target[key].dtype) for key, value in source.items())
    report.cast = dict(Counter(f"{_name(theirs)} → {_name(ours)}" for theirs, ours in changes if theirs != ours))
    report.loaded = sorted(source)
    report.actions = {key: action for key, action in report.actions.items() if key in source}
    model.load_state_dict(source, strict=False)


def check_numbers(source: Mapping[str, Tensor], model: nn.Module, name: str) -> None:
    """Raise ValueError naming a tensor that is not floating point, except BatchNorm's counters, or whose values are
    impossible: not finite, not so in float32, or a variance below 0.
    """
    counts = {key for key, tensor in model.state_dict().items() if not tensor.is_floating_point()}
    for key, tensor in source.items():
        is_count = (key in counts or key.endswith(COUNT)) and not tensor.is_complex()
        if not tensor.is_floating_point() and not is_count:
            kind = _name(tensor.dtype)
            raise ValueError(f"model.pretrained: {name}: {key} is of the type {kind}; weights must be floating point")
        if tensor.numel() == 0 or not tensor.is_floating_point():
            continue
        # one pass over the tensor: with a NaN in it, both extremes are NaN
        extremes = torch.aminmax(tensor.detach() if tensor.itemsize > 1 else tensor.detach().float())
        smallest, largest = float(extremes.min), float(extremes.max)
        if not (isfinite(smallest) and isfinite(largest)):
            raise ValueError(f"model.pretrained: {name}: {key} has NaN or infinite values")
        if max(-smallest, largest) > torch.finfo(torch.float32).max:
            value = max(smallest, largest, key=abs)
            raise ValueError(f"model.pretrained: {name}: {key} has values beyond those of float32, such as {value:g}")
        if key.endswith("running_var") and smallest < 0:
            raise ValueError(f"model.pretrained: {name}: {key} is a variance and has values below 0")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _translate(
    layout: Layout | None, source: dict[str, Tensor], config: Architecture, report: LoadReport
) -> dict[str, Tensor]:
    if layout is None:
        return source
    try:
        translation = apply_rules(layout, source, config)
    except ValueError as error:
        raise ValueError(f"model.pretrained: {report.source}: {error}; is model.name the right one?") from error
    report.layout, report.actions, report.dropped = layout.name, translation.actions, translation.dropped
    report.unexpected = translation.unexpected
    return translation.tensors


def _check_dimensions(source: dict[str, Tensor], target: dict[str, Tensor], name: str) -> None:
    """ValueError for a tensor that has another number of dimensions than the model's, or than positions have."""
    expected = _POSITION_DIMENSIONS | {key: tensor.dim() for key, tensor in target.items()}
    for key, tensor in source.items():
        if tensor.dim() != expected.get(key, tensor.dim()):
            raise ValueError(
                f"model.pretrained: {name}: {key} has shape {tuple(tensor.shape)}, and it must have "
                f"{counted(expected[key], 'dimension')}"
            )


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
    """Resize learned positions, of any kind, to the model's grid."""
    resized = dict(source)
    new, how = config.grid_size, config.position_resize
    report.resize = how
    if "positions.grid" in source and "positions.grid" in target:
        old = _source_grid(source, config, grid, report.source)
        resized["positions.grid"] = resize_grid(source["positions.grid"], old, new, how)
        _note(report, "positions.grid", old, new)
    for key, size in (("positions.rows", new[0]), ("positions.columns", new[1])):
        if key in source:
            resized[key] = resize_axis(source[key], size, how)
            _note(report, key, (source[key].shape[0], 1), (size, 1))
    if "positions.table" in source:
        table = source["positions.table"]
        resized["positions.table"] = resize_offsets(table, new, how)
        _note(report, "positions.table", (table.shape[2], table.shape[3]), (2 * new[0] - 1, 2 * new[1] - 1))
    return resized


def _source_grid(source: dict[str, Tensor], config: ViTConfig, grid: Grid | None, name: str) -> Grid:
    prefix = source.get("positions.prefix")
    num_prefix = 0 if prefix is None else prefix.shape[1]
    rows = source["positions.grid"].shape[1] + num_prefix
    if grid is not None:
        return check_grid(rows, num_prefix, grid, name)
    tokens = config.num_placed_tokens or int(config.class_token) + int(config.distillation_token)
    return infer_grid(rows, num_prefix=num_prefix, possible_prefix=tokens, model_grid=config.grid_size, name=name)


def _note(report: LoadReport, key: str, old: Grid, new: Grid) -> None:
    if old != new:
        report.resized[key] = f"{old[0]}×{old[1]} → {new[0]}×{new[1]}"
