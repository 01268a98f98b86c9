"""Whole models against other libraries': a forward pass or a training step, in turns, with the same weights.

Every cell of the table is one model, batch size, type and kind of pass; all sides take the same images, and a large
matrix product is timed as one side more, so that the share of the machine's peak comes from the same turns. A finished
cell is stored in the folder of the table, and a stopped table goes on behind it.

How each side computes in bf16. A step: autocast. A forward pass: ours as `for_inference` gives it; a peer by the faster
of autocast and weights cast once, which is tried before.
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

from vit.config import check, check_positive, nearest
from vit.evaluation.cost import multiply_adds
from vit.experiments.absent import Absent
from vit.experiments.model_speed_table import cell_file, cell_name, line, read_cells, write_tables
from vit.experiments.peers import PEERS, build_peer, installed_peers
from vit.experiments.turns import (
    DTYPES,
    PEAK,
    STEP_PASSES,
    WARM_UP,
    Seconds,
    against_peak,
    check_device,
    code_state,
    machine,
    matrix_product,
    spread,
    time_calls,
    time_in_turns,
    times_as_fast,
)
from vit.hub import create_model
from vit.layers.packed import PackedLinear
from vit.models.inference import for_inference
from vit.models.vision_transformer import VisionTransformer
from vit.runs import write_json
from vit.weights.convert import perturb

Kind = Literal["forward", "step"]
_CIFAR = {"image_size": 32, "patch_size": 4, "width": 128, "depth": 6, "num_heads": 4}
MODELS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Ti": ({"name": "vit_tiny_patch16_224", "num_classes": 1000}, (1, 8, 32)),
    "S": ({"name": "vit_small_patch16_224", "num_classes": 1000}, (1, 8, 32)),
    "B": ({"name": "vit_base_patch16_224", "num_classes": 1000}, (1, 8)),
    "CIFAR": ({"name": "vit", "num_classes": 10, "pooling": "gap", "class_token": False, **_CIFAR}, (8, 128)),
    "L": ({"name": "vit_large_patch16_224", "num_classes": 1000}, (1, 8)),
}
"""Label → the model, and the batch sizes that it is timed at unless others are asked for. CIFAR: the model of
`configs/cifar10_vit_small_cpu.yaml`."""
_TIMED = ("Ti", "S", "B", "CIFAR")
"""Unless others are asked for: L is for devices."""
SHORTEST = 0.25
OURS = "vit"
_CODE = (
    *("attention", "layers", "models", "weights", "hub.py", "linear.py", "processor.py", "randomness.py"),
    *("config/model.py", "evaluation/cost.py"),
    *(f"experiments/{name}.py" for name in ("model_speed", "peers", "turns")),
)
"""What is timed, what times it, and what makes the peers of it."""
_ASKED_LATER = ("multiplies_bfloat16",)
"""What cells of older versions do not say of their machine."""
_TRIED = 3
"""Turns that find a peer's faster way."""
_TOLERANCES = {"fp32": 1e-3, "bf16": 5e-2}
"""Of the timed copy's answers from the model's in float32."""
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
    """What is measured, and how. ValueError for what there is not."""

    kind: Kind
    models: Sequence[str] = _TIMED
    batch_sizes: Sequence[int] | None = None
    """None: each model's own."""
    dtypes: Sequence[str] = ("fp32", "bf16")
    peers: Sequence[str] | None = None
    """None: all that are installed."""
    turns: int = 7
    compile: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        for option, known in (("models", MODELS), ("peers", PEERS), ("dtypes", ("fp32", "bf16"))):
            for value in getattr(self, option) or ():
                check(value in known, f"--{option}", value, nearest(value, known))
        for value in self.peers or ():
            check(value in installed_peers(), "--peers", value, "it is not installed; the extra 'bench' has it")
        for size in self.batch_sizes or ():
            check_positive("--batch_sizes", size)
        check_positive("--turns", self.turns)
        check_device("--device", self.device)

    @property
    def sides(self) -> list[str]:
        """The peers, in their own order."""
        wanted = installed_peers() if self.peers is None else self.peers
        return [name for name in PEERS if name in wanted]

    def cells(self) -> Iterator[Cell]:
        for model in self.models:
            for batch_size in MODELS[model][1] if self.batch_sizes is None else self.batch_sizes:
                for dtype in self.dtypes:
                    yield Cell(kind=self.kind, model=model, batch_size=batch_size, dtype=dtype, compiled=self.compile)


def measure_table(table: Table, folder: Path, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """The rows of the asked cells, of which each is stored in `folder` when it is finished, and taken from there where
    it was measured before. `table.json` and `table.md` hold all that the folder has.

    ValueError, before anything is measured, for a stored file that is not a cell, and for one that was measured with
    other settings or on another machine: a table is of one kind, and hours of measuring are not overwritten.
    """
    stored, conditions, code = read_cells(folder), _conditions(table), code_state(_CODE)
    for name, row in stored.items():
        _check_conditions(cell_file(folder, name), row["conditions"], conditions)
    rows = []
    for cell in table.cells():
        if cell.name not in stored:
            tell(f"{cell.name} …")
            measured = measure_cell(cell, table, tell)
            stored[cell.name] = {**asdict(cell), **measured, "code": code, "conditions": conditions}
            file = cell_file(folder, cell.name)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, stored[cell.name])
            write_tables(folder)
        elif stored[cell.name].get("code") != code:
            file = cell_file(folder, cell.name)
            tell(f"{cell.name}: stored, by other code of this package; to measure it again remove {file}")
        rows.append(stored[cell.name])
        tell(line(rows[-1]))
    write_tables(folder)
    return rows


def _conditions(table: Table) -> dict[str, Any]:
    return {"turns": table.turns, "peers": table.sides, **machine(table.device, PEERS)}


def _check_conditions(file: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    asked = [name for name in now if name in before or name not in _ASKED_LATER]
    differing = [f"{name} {before.get(name)!r}, now {now[name]!r}" for name in asked if before.get(name) != now[name]]
    if differing:
        what = "; ".join(differing)
        raise ValueError(f"--output: {file} was measured with {what}: give another folder, or remove that file")


def measure_cell(cell: Cell, table: Table, tell: Callable[[str], None]) -> dict[str, Any]:
    """Images a second of ours and of every peer that has this model, ratios turn by turn, and shares of the peak."""
    torch.manual_seed(0)
    torch.compiler.reset()
    ours = _ours(cell)
    work = {every: _gflop(cell, ours, every_token=every) for every in (True, False)}
    models: dict[str, nn.Module] = {OURS: ours}
    absent, differences = {}, {}
    for name in table.sides:
        try:
            models[name], differences[name] = build_peer(name, ours)
        except Absent as reason:
            absent[name] = str(reason)
            tell(f"  without {name}: {reason}")
    batch = _batch(cell, ours, table.device)
    expected = _answer(ours.to(table.device), batch[0]) if cell.kind == "forward" else None
    sides: dict[str, Callable[[], object]] = {}
    ways: dict[str, str] = {}
    for name, model in models.items():
        tell(f"  {name}: ready to be timed")
        ways[name], sides[name] = _side(cell, model, batch, is_ours=name == OURS, device=table.device)
    if expected is not None:
        time_calls(sides[OURS], WARM_UP, table.device)
        differences[OURS] = _check_answer(sides[OURS](), expected, cell.dtype)
    sides[PEAK], product_gflop = matrix_product(cell.dtype, table.device)
    times = time_in_turns(sides, table.turns, table.device, shortest=SHORTEST, draw=cell.name)
    gflop = {name: work[name != OURS] for name in models}
    return {
        "ways": ways,
        "differences": differences,
        "absent": absent,
        **_summary(times, cell.batch_size, gflop, product_gflop),
    }


def _gflop(cell: Cell, ours: VisionTransformer, *, every_token: bool) -> float:
    macs = multiply_adds(ours, ours.config.image_size, every_token=every_token)
    return _PASSES[cell.kind] * 2 * macs * cell.batch_size / 1e9


def _summary(
    times: dict[str, list[Seconds]], batch_size: int, gflop: dict[str, float], product_gflop: float
) -> dict[str, Any]:
    rates = {
        name: spread([batch_size / each.wall for each in seconds]) for name, seconds in times.items() if name != PEAK
    }
    peers = [name for name in rates if name != OURS]
    speed = {name: gflop[name] * rates[name]["median"] / batch_size for name in rates}
    ratios = {name: spread(times_as_fast(times[OURS], times[name])) for name in peers}
    return {
        "images_per_second": rates,
        "ratios": ratios,
        "processor_ratios": {name: spread(times_as_fast(times[OURS], times[name], "processor")) for name in peers},
        "best_peer": min(peers, key=lambda name: ratios[name]["median"]) if peers else None,
        "gflop": {name: round(found, 6) for name, found in gflop.items()},
        "gflops": {name: round(found, 1) for name, found in speed.items()},
        **against_peak(times, gflop, product_gflop),
        "seconds": {name: [[round(value, 6) for value in each] for each in seconds] for name, seconds in times.items()},
    }


def _ours(cell: Cell) -> VisionTransformer:
    model = create_model(**MODELS[cell.model][0])
    assert isinstance(model, VisionTransformer)
    perturb(model, scale=0.02)
    return model


def _batch(cell: Cell, ours: VisionTransformer, device: str) -> tuple[Tensor, Tensor]:
    images = torch.randn(cell.batch_size, 3, *ours.config.image_size, device=device)
    return images, torch.randint(ours.config.num_classes, (cell.batch_size,), device=device)


def _side(
    cell: Cell, model: nn.Module, batch: tuple[Tensor, Tensor], *, is_ours: bool, device: str
) -> tuple[str, Callable[[], object]]:
    """How it computes, and the pass to be timed."""
    model = model.to(device)
    if cell.kind == "step":
        return "autocast" if cell.dtype == "bf16" else "fp32", _step(cell, model, batch)
    images = batch[0].to(DTYPES[cell.dtype])
    if is_ours:
        assert isinstance(model, VisionTransformer)
        twin = for_inference(model, DTYPES[cell.dtype], packed=not cell.compiled)
        packed = any(isinstance(module, PackedLinear) for module in twin.modules())
        return "for_inference, packed" if packed else "for_inference", _forward(cell, twin, images, autocast=False)
    if cell.dtype == "fp32":
        return "fp32", _forward(cell, model, images, autocast=False)
    cast = _forward(cell, deepcopy(model).bfloat16(), images, autocast=False)
    ways = {"weights cast once": cast, "autocast": _forward(cell, model, batch[0], autocast=True)}
    tried = time_in_turns(ways, _TRIED, device, shortest=SHORTEST, draw=f"{cell.name} tried")
    best = min(ways, key=lambda way: min(each.wall for each in tried[way]))
    return best, ways[best]


def _forward(cell: Cell, model: nn.Module, images: Tensor, *, autocast: bool) -> Callable[[], Tensor]:
    call = _compiled(model.eval(), device=images.device) if cell.compiled else model.eval()

    def run() -> Tensor:
        with torch.inference_mode(), _autocast(images.device, autocast):
            logits: Tensor = call(images)
        return logits

    return run


def _answer(model: nn.Module, images: Tensor) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model.eval()(images)
    return logits


def _check_answer(timed: Any, expected: Tensor, dtype: str) -> float:
    """The largest difference relative to the largest number. RuntimeError where it computes something else."""
    found = ((timed - expected).abs().max() / expected.abs().max()).item()
    if not found < _TOLERANCES[dtype]:
        raise RuntimeError(f"what is timed of {OURS} computes something else: largest relative difference {found:.1e}")
    return found


def _step(cell: Cell, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Callable[[], object]:
    """Forward, cross-entropy, backward, AdamW."""
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
    """Each side in the same mode: on CUDA with CUDA graphs."""
    call: Callable[[Tensor], Tensor] = torch.compile(model, mode="reduce-overhead" if device.type == "cuda" else None)
    return call


def _autocast(device: torch.device, enabled: bool) -> Any:
    return torch.autocast(device.type, DTYPES["bf16"]) if enabled else nullcontext()
