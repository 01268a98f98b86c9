"""Weights from a file or a dictionary into a model: renamed, resized to the grid, checked to the last tensor.

Reads safetensors, and torch files of plain tensors (`weights_only`); a pickle with code in it is refused.
"""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import torch
from einops import rearrange
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from vit.config import ViTConfig
from vit.layers.positions import resize_grid
from vit.models import Classifier
from vit.weights.report import LoadReport
from vit.weights.timm import from_timm_vit, is_timm_vit

Grid = tuple[int, int]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The named tensors of a `.safetensors`, `.pth`, `.pt` or `.bin` file. ValueError, naming it, for any other."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".pth", ".pt", ".bin"):
            _check_torch_file(path)
            return _only_tensors(path, torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError as error:
        raise ValueError(f"model.pretrained: there is no file {str(path)!r}") from error
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"model.pretrained: {path} holds more than tensors (a pickle may run code); refused"
        ) from error
    except (SafetensorError, RuntimeError, EOFError) as error:
        raise ValueError(f"model.pretrained: {path} is damaged: {' '.join(str(error).split())}") from error
    raise ValueError(f"model.pretrained: {str(path)!r} is not a .safetensors, .pth, .pt or .bin file, nor a run folder")


def _check_torch_file(path: Path) -> None:
    """torch's own complaint about a text file is that of a pickle with code in it."""
    with path.open("rb") as stream:
        start = stream.read(2)
    if start != b"PK" and start[:1] != pickle.PROTO:  # a zip archive, or a pickle as torch wrote them before 1.6
        raise ValueError(f"model.pretrained: {path} is not a readable torch file")


def _only_tensors(path: Path, content: object) -> dict[str, Tensor]:
    """A state dictionary, or the one inside a checkpoint's usual key."""
    if isinstance(content, dict):
        for key in ("state_dict", "model"):
            if isinstance(content.get(key), dict):
                content = content[key]
                break
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"model.pretrained: {path} does not hold a dictionary of tensors")
    return content


def load_weights(
    model: Classifier,
    source: dict[str, Tensor],
    name: str,
    *,
    source_grid: Grid | None = None,
    new_head: bool = False,
) -> LoadReport:
    """Put `source` (timm's names or ours) into the model.

    `source_grid`: the patch grid its positions were learned on; None: the model's if the count fits, else a square.
    `new_head`: leave the head at its first values. A model without a head takes none. ValueError for a tensor left
    over, missing or of another shape, and for another number of classes without `new_head`.
    """
    report = LoadReport(source=name, num_source=len(source))
    config = model.config
    if isinstance(config, ViTConfig):
        if is_timm_vit(set(source)):
            source = from_timm_vit(source, config)
        source = _resize_positions(source, model.state_dict(), config, source_grid, report)
    target = model.state_dict()
    heads = tuple(f"{head}." for head in model.head_names())
    if new_head or not heads:
        report.replaced = [key for key in target if key.startswith(heads)]
        source = {key: value for key, value in source.items() if not key.startswith(_HEADS)}
    _check_classes(source, target, heads, name)
    load_exactly(model, source, report)
    return report


def load_exactly(model: nn.Module, source: dict[str, Tensor], report: LoadReport) -> None:
    """Put tensors under the model's own names into it, and say so in `report`.

    ValueError for a tensor left over, missing (unless `report.replaced` has it) or of another shape.
    """
    target = model.state_dict()
    report.left_over = sorted(set(source) - set(target))
    report.missing = [key for key in target if key not in source and key not in report.replaced]
    report.check()
    for key, value in source.items():
        if value.shape != target[key].shape:
            raise ValueError(
                f"model.pretrained: {report.source}: {key} has shape {tuple(value.shape)}, "
                f"the model's is {tuple(target[key].shape)}"
            )
    report.loaded = sorted(source)
    model.load_state_dict(source, strict=False)


_HEADS = ("head.", "distillation_head.", "fc.")


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
        old = grid or _guess_grid(source["positions.grid"].shape[1], new, report.source)
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


def _note(report: LoadReport, key: str, old: Grid, new: Grid) -> None:
    if old != new:
        report.resized[key] = f"{old[0]}×{old[1]} → {new[0]}×{new[1]}"


def _guess_grid(count: int, wanted: Grid, name: str) -> Grid:
    side = math.isqrt(count)
    if count == wanted[0] * wanted[1]:
        return wanted
    if side * side == count:
        return side, side
    raise ValueError(
        f"model.pretrained: {name} has positions for {count} patches, "
        f"neither the model's {wanted[0]}×{wanted[1]} nor a square; "
        "is model.name (prefix tokens, patch size) the right one?"
    )
