"""Speed of whole models against other libraries': forward passes or training steps with the same weights.

Every cell of the table is one model, batch size, type and kind of pass. All libraries get the same images, and a large
matrix product is timed with them, so that the share of the machine's peak comes from the same turns. A finished cell is
stored in the folder of the table, so that a stopped table continues.

In bf16, steps use autocast. Forward passes use `for_inference` for ours, and for another library the faster of autocast
and weights cast once, which is tried before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.model_speed_table import cell_file, cell_name, line, read_cells, write_tables
from benchmarks.reference_models import REFERENCES, build_reference, installed_references
from benchmarks.timing import (
    DTYPES,
    PEAK,
    STEP_PASSES,
    WARM_UP,
    ProgressFn,
    Seconds,
    check_device,
    code_digest,
    compare_with_peak,
    matrix_product,
    quartiles,
    speedups,
    time_calls,
    time_interleaved,
)
from benchmarks.unsupported import Unsupported
from vit.config import check, check_positive, nearest
from vit.evaluation.cost import multiply_adds
from vit.hub import create_model
from vit.layers.packed import PackedLinear
from vit.models.inference import for_inference
from vit.models.initialization import perturb_weights
from vit.models.vision_transformer import VisionTransformer
from vit.processor import machine
from vit.runs import write_json

Kind = Literal["forward", "step"]
_CIFAR = {"image_size": 32, "patch_size": 4, "width": 128, "depth": 6, "num_heads": 4}
MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Ti": ({"name": "vit_tiny_patch16_224", "num_classes": 1000}, (1, 8, 32)),
    "S": ({"name": "vit_small_patch16_224", "num_classes": 1000}, (1, 8, 32)),
    "B": ({"name": "vit_base_patch16_224", "num_classes": 1000}, (1, 8)),
    "CIFAR": ({"name": "vit", "num_classes": 10, "pooling": "gap", "class_token": False, **_CIFAR}, (8, 128)),
    "L": ({"name": "vit_large_patch16_224", "num_classes": 1000}, (1, 8)),
}
"""Label → the model and its default batch sizes. CIFAR is the model of `configs/cifar10_vit_small_cpu.yaml`."""
_DEFAULT_MODELS = ("Ti", "S", "B", "CIFAR")
"""L is too slow for a CPU."""
SHORTEST = 0.25
OURS = "vit"
_CODE = (
    *(f"vit/{name}" for name in ("attention", "config", "hub", "layers", "libraries", "models", "weights")),
    *(f"vit/{name}.py" for name in ("compiling", "linear", "processor", "randomness", "evaluation/cost")),
    *(f"benchmarks/{name}.py" for name in ("model_speed", "reference_models", "timing")),
)
"""The timed code, the timing, and the building of the other libraries' models."""
_LATER_CONDITIONS = ("multiplies_bfloat16",)
"""Facts about the machine that cells of older versions do not have."""
_TRIAL_TURNS = 3
"""Turns to find a library's faster way."""
_TOLERANCES = {"fp32": 1e-3, "bf16": 5e-2}
"""Largest relative difference of the timed copy's logits from the model's in float32."""
_PASSES = {"forward": 1, "step": STEP_PASSES}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One line of the table."""

    kind: Kind
    model: str
    batch_size: int
    dtype: str
    compiled: bool

    @property
    def name(self) -> str:
        return cell_name(asdict(self))


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells to measure, and how. ValueError for unknown names and invalid numbers."""

    kind: Kind
    models: Sequence[str] = _DEFAULT_MODELS
    batch_sizes: Sequence[int] | None = None
    """None: each model's default."""
    dtypes: Sequence[str] = ("fp32", "bf16")
    peers: Sequence[str] | None = None
    """None: all that are installed."""
    turns: int = 7
    compile: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        for option, known in (("models", MODELS), ("peers", REFERENCES), ("dtypes", ("fp32", "bf16"))):
            for value in getattr(self, option) or ():
                check(value in known, f"--{option}", value, nearest(value, known))
        for value in self.peers or ():
            check(value in installed_references(), "--peers", value, "it is not installed; the extra 'bench' has it")
        for size in self.batch_sizes or ():
            check_positive("--batch_sizes", size)
        check_positive("--turns", self.turns)
        check_device("--device", self.device)

    @property
    def references(self) -> list[str]:
        """Compared libraries, in the order of `REFERENCES`."""
        chosen = installed_references() if self.peers is None else self.peers
        return [name for name in REFERENCES if name in chosen]

    def cells(self) -> Iterator[Cell]:
        for model in self.models:
            for batch_size in MODELS[model][1] if self.batch_sizes is None else self.batch_sizes:
                for dtype in self.dtypes:
                    yield Cell(kind=self.kind, model=model, batch_size=batch_size, dtype=dtype, compiled=self.compile)


def measure_table(table: Table, folder: Path, progress: ProgressFn) -> list[dict[str, Any]]:
    """Measure the cells of the table, or read them from `folder`, where each is stored when it is finished.

    `table.json` and `table.md` contain all cells of the folder. ValueError, before anything is measured, for a stored
    file that is not a cell, and for one that was measured with other settings or on another machine: mixed rows could
    not be compared, and hours of measuring are not overwritten.
    """
    stored, code = read_cells(folder), code_digest(_CODE)
    conditions = {"turns": table.turns, "peers": table.references, **machine(table.device, REFERENCES)}
    for name, row in stored.items():
        _check_conditions(cell_file(folder, name), row["conditions"], conditions)
    rows = []
    for cell in table.cells():
        if cell.name not in stored:
            progress(f"{cell.name} …")
            measured = measure_cell(cell, table, progress)
            stored[cell.name] = {**asdict(cell), **measured, "code": code, "conditions": conditions}
            file = cell_file(folder, cell.name)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, stored[cell.name])
            write_tables(folder)
        elif stored[cell.name].get("code") != code:
            file = cell_file(folder, cell.name)
            progress(
                f"{cell.name}: stored, measured with other code of this package; remove {file} to measure it again"
            )
        rows.append(stored[cell.name])
        progress(line(rows[-1]))
    write_tables(folder)
    return rows


def _check_conditions(file: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    names = [name for name in now if name in before or name not in _LATER_CONDITIONS]
    differing = [f"{name} {before.get(name)!r}, now {now[name]!r}" for name in names if before.get(name) != now[name]]
    if differing:
        changes = "; ".join(differing)
        raise ValueError(f"--output: {file} was measured with {changes}: give another folder, or remove that file")


def measure_cell(cell: Cell, table: Table, progress: ProgressFn) -> dict[str, Any]:
    """Measure images/s of our model and of every library that has it, with ratios and shares of the peak."""
    torch.manual_seed(0)
    torch.compiler.reset()
    ours = create_model(**MODELS[cell.model][0])
    assert isinstance(ours, VisionTransformer)
    perturb_weights(ours, scale=0.02)
    size, passes = ours.config.image_size, _PASSES[cell.kind]
    work = {
        every: passes * 2 * multiply_adds(ours, size, every_token=every) * cell.batch_size / 1e9
        for every in (True, False)
    }
    models: dict[str, nn.Module] = {OURS: ours}
    unsupported, differences = {}, {}
    for name in table.references:
        try:
            models[name], differences[name] = build_reference(name, ours)
        except Unsupported as reason:
            unsupported[name] = str(reason)
            progress(f"  without {name}: {reason}")
    images = torch.randn(cell.batch_size, 3, *size, device=table.device)
    batch = images, torch.randint(ours.config.num_classes, (cell.batch_size,), device=table.device)
    expected = None
    if cell.kind == "forward":
        with torch.inference_mode():
            expected = ours.to(table.device).eval()(images)
    functions: dict[str, Callable[[], object]] = {}
    ways: dict[str, str] = {}
    for name, model in models.items():
        progress(f"  {name}: ready")
        ways[name], functions[name] = _timed_pass(cell, model, batch, is_ours=name == OURS, device=table.device)
    if expected is not None:
        time_calls(functions[OURS], WARM_UP, table.device)
        differences[OURS] = _check_logits(functions[OURS](), expected, cell.dtype)
    functions[PEAK], product_gflop = matrix_product(cell.dtype, table.device)
    times = time_interleaved(functions, table.turns, table.device, shortest=SHORTEST, seed=cell.name)
    gflop = {name: work[name != OURS] for name in models}
    return {
        "ways": ways,
        "differences": differences,
        "unsupported": unsupported,
        **_summary(times, cell.batch_size, gflop, product_gflop),
    }


def _summary(
    times: dict[str, list[Seconds]], batch_size: int, gflop: dict[str, float], product_gflop: float
) -> dict[str, Any]:
    rates = {
        name: quartiles([batch_size / each.wall for each in seconds]) for name, seconds in times.items() if name != PEAK
    }
    peers = [name for name in rates if name != OURS]
    speed = {name: gflop[name] * rates[name]["median"] / batch_size for name in rates}
    ratios = {name: quartiles(speedups(times[OURS], times[name])) for name in peers}
    return {
        "images_per_second": rates,
        "ratios": ratios,
        "processor_ratios": {name: quartiles(speedups(times[OURS], times[name], "processor")) for name in peers},
        "best_peer": min(peers, key=lambda name: ratios[name]["median"]) if peers else None,
        "gflop": {name: round(found, 6) for name, found in gflop.items()},
        "gflops": {name: round(found, 1) for name, found in speed.items()},
        **compare_with_peak(times, gflop, product_gflop),
        "seconds": {name: [[round(value, 6) for value in each] for each in seconds] for name, seconds in times.items()},
    }


def _timed_pass(
    cell: Cell, model: nn.Module, batch: tuple[Tensor, Tensor], *, is_ours: bool, device: str
) -> tuple[str, Callable[[], object]]:
    """Return the way of computing, and the pass to time."""
    model = model.to(device)
    if cell.kind == "step":
        return "autocast" if cell.dtype == "bf16" else "fp32", _step(cell, model, batch)
    images = batch[0].to(DTYPES[cell.dtype])
    if is_ours:
        assert isinstance(model, VisionTransformer)
        inference_copy = for_inference(model, DTYPES[cell.dtype])
        packed = any(isinstance(module, PackedLinear) for module in inference_copy.modules())
        way = "for_inference, packed" if packed else "for_inference"
        return way, _forward(cell, inference_copy, images, autocast=False)
    if cell.dtype == "fp32":
        return "fp32", _forward(cell, model, images, autocast=False)
    cast = _forward(cell, deepcopy(model).bfloat16(), images, autocast=False)
    ways = {"weights cast once": cast, "autocast": _forward(cell, model, batch[0], autocast=True)}
    tried = time_interleaved(ways, _TRIAL_TURNS, device, shortest=SHORTEST, seed=f"{cell.name} tried")
    best = min(ways, key=lambda way: min(each.wall for each in tried[way]))
    return best, ways[best]


def _forward(cell: Cell, model: nn.Module, images: Tensor, *, autocast: bool) -> Callable[[], Tensor]:
    call = _compiled(model.eval(), device=images.device) if cell.compiled else model.eval()

    def run() -> Tensor:
        with torch.inference_mode(), _autocast(images.device, autocast):
            logits: Tensor = call(images)
        return logits

    return run


def _check_logits(timed: Any, expected: Tensor, dtype: str) -> float:
    """Compute the largest difference relative to the largest logit. RuntimeError if it exceeds rounding."""
    difference = ((timed - expected).abs().max() / expected.abs().max()).item()
    if not difference < _TOLERANCES[dtype]:
        raise RuntimeError(f"{OURS}'s timed copy computes something else: largest relative difference {difference:.1e}")
    return difference


def _step(cell: Cell, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], object]:
    """Build a training step: forward, cross-entropy, backward, AdamW."""
    images, labels = batch
    call = _compiled(model.train(), device=images.device) if cell.compiled else model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)

    def run() -> None:
        with _autocast(images.device, cell.dtype == "bf16"):
            logits = call(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def _compiled(model: nn.Module, *, device: torch.device) -> Callable[[Tensor], Tensor]:
    """Compile in the same mode for every library: on CUDA with CUDA graphs."""
    call: Callable[[Tensor], Tensor] = torch.compile(model, mode="reduce-overhead" if device.type == "cuda" else None)
    return call


def _autocast(device: torch.device, enabled: bool) -> Any:
    return torch.autocast(device.type, DTYPES["bf16"]) if enabled else nullcontext()
