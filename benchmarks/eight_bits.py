"""Speed of eight bits: our int8 models against our own float ones, onnxruntime's float and int8, and timm with torchao.

Ours are measured as `for_inference` gives them, compiled by `torch.compile`, and compiled ahead of time, as the file
that `vit export --format compiled` writes. All sides are one model with the same weights and images, timed in turns.
onnxruntime runs the file of `vit export` too (logits of prepared images); timm's model is measured as it is, compiled
ahead in the same way, and quantised by torchao (weights of int8 per channel, vectors at every call) and compiled, as
torchao's documentation advises. The difference of every side's logits from the float32 model's is measured too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.model_speed import MODELS
from benchmarks.reference_models import build_reference, installed_references
from benchmarks.timing import ProgressFn, quartiles, speedups, time_interleaved
from vit.config import Preprocessing, check, check_positive, nearest
from vit.deployment.compiled import Program, load_compiled
from vit.deployment.program import Format, Number, write_program
from vit.hub import create_model
from vit.models.inference import for_inference
from vit.models.initialization import perturb_weights
from vit.models.vision_transformer import VisionTransformer
from vit.processor import HAS_VNNI, MULTIPLIES_BFLOAT16, machine
from vit.wording import markdown_table

Forward = Callable[[], Tensor]
OURS = "vit int8 ahead"
OURS_FLOAT = "vit fp32 ahead"
SHORTEST = 0.25
"""Seconds of a turn at least."""
CONVENTIONS = {
    "images_per_second": "median and quartiles of the turns",
    "times_as_fast": f"{OURS} over the side, within a turn; median and quartiles of the turns",
    "float_times_as_fast": f"{OURS_FLOAT} over the sides without eight bits, the same",
    "ahead": "compiled by AOTInductor into a file, which is then opened",
    "seconds_to_compile": "what writing the compiled file and opening it took",
    "change": "norm of the difference from the float32 model's logits over their norm",
}


def bench_eight_bits(
    models: Sequence[str] = ("Ti", "S", "B"),
    batch_sizes: Sequence[int] = (1, 8),
    *,
    turns: int = 7,
    progress: ProgressFn = lambda _: None,
) -> dict[str, Any]:
    """Measure images/s of every side for every model and batch size. ValueError for unknown models and no turns."""
    for name in models:
        check(name in MODELS, "--models", name, nearest(name, MODELS))
    for size in batch_sizes:
        check_positive("--batch_sizes", size)
    check_positive("--turns", turns)
    rows = []
    for name in models:
        torch.manual_seed(0)
        model = create_model(**MODELS[name][0])
        assert isinstance(model, VisionTransformer)
        perturb_weights(model, scale=0.02)
        ahead = _Ahead(model.eval(), progress)
        for size in batch_sizes:
            rows.append({"model": name, "batch_size": size, **_measure(model, ahead, size, turns, progress)})
            progress(line(rows[-1]))
    return {
        "rows": rows,
        "ours": OURS,
        "turns": turns,
        "machine": {**machine("cpu", ("timm", "onnxruntime", "torchao")), "multiplies_bytes": HAS_VNNI},
        "conventions": CONVENTIONS,
    }


def line(row: dict[str, Any]) -> str:
    sides = [
        f"{name} {rate['median']:.1f}" + (f" ({row['times_as_fast'][name]['median']:.2f})" if name != OURS else "")
        for name, rate in row["images_per_second"].items()
    ]
    return f"{row['model']}, {row['batch_size']} at once, images/s (times {OURS}): {', '.join(sides)}"


def markdown(result: dict[str, Any]) -> str:
    """A table: images/s of int8, and how many times as fast that is as every other side."""
    others = list(dict.fromkeys(name for row in result["rows"] for name in row["times_as_fast"]))
    head = ["model", "batch", f"{OURS}, images/s", *(f"over {name}" for name in others)]
    lines = []
    for row in result["rows"]:
        ratios = [row["times_as_fast"].get(name) for name in others]
        shown = ["–" if ratio is None else f"{ratio['median']:.2f}" for ratio in ratios]
        lines.append([row["model"], str(row["batch_size"]), f"{row['images_per_second'][OURS]['median']:.1f}", *shown])
    return markdown_table(head, lines)


class _Ahead:
    """Our model and timm's compiled ahead of time, for any number of images, by what they compute with."""

    def __init__(self, model: VisionTransformer, progress: ProgressFn) -> None:
        self.programs: dict[str, Program] = {}
        self.seconds: dict[str, float] = {}
        bf16: list[Number] = ["bf16"] * MULTIPLIES_BFLOAT16
        sides: list[tuple[str, nn.Module, Number]] = [(f"vit {it}", model, it) for it in ("int8", "fp32", *bf16)]
        if "timm" in installed_references():
            sides.append(("timm fp32", build_reference("timm", model)[0].eval(), "fp32"))
        for name, module, number in sides:
            begun = time.perf_counter()
            with TemporaryDirectory() as folder:
                path = Path(folder) / "model.pt2"
                _write(module, model.config.image_size, "compiled", path, number)
                self.programs[f"{name} ahead"] = load_compiled(path)
            self.seconds[f"{name} ahead"] = round(time.perf_counter() - begun, 1)
            progress(f"{name} ahead: compiled in {self.seconds[f'{name} ahead']} s")


def _measure(
    model: VisionTransformer, ahead: _Ahead, batch_size: int, turns: int, progress: ProgressFn
) -> dict[str, Any]:
    images = torch.randn(batch_size, 3, *model.config.image_size)
    with torch.inference_mode():
        expected = model(images)
    sides = {name: _forward(program, images) for name, program in ahead.programs.items()}
    for name, side in _sides(model, images, progress):
        sides[name] = side
        progress(f"  {name}: ready")
    changes = {name: float((side().float() - expected).norm() / expected.norm()) for name, side in sides.items()}
    times = time_interleaved(sides, turns, "cpu", shortest=SHORTEST, seed=f"eight bits {batch_size}")
    others = [name for name in sides if name != OURS]
    floats = [name for name in others if name != OURS_FLOAT and "int8" not in name]
    return {
        "images_per_second": {name: quartiles([batch_size / each.wall for each in times[name]]) for name in sides},
        "times_as_fast": {name: quartiles(speedups(times[OURS], times[name])) for name in others},
        "float_times_as_fast": {name: quartiles(speedups(times[OURS_FLOAT], times[name])) for name in floats},
        "change": {name: round(change, 5) for name, change in changes.items()},
        "seconds_to_compile": ahead.seconds,
    }


def _sides(model: VisionTransformer, images: Tensor, progress: ProgressFn) -> Iterator[tuple[str, Forward]]:
    torch.compiler.reset()
    types: dict[str, Any] = {"int8": "int8", "fp32": torch.float32}
    if MULTIPLIES_BFLOAT16:
        types["bf16"] = torch.bfloat16
    for name, dtype in types.items():
        given = images.bfloat16() if name == "bf16" else images
        yield f"vit {name}", _forward(for_inference(model, dtype), given)
        compiled = for_inference(model, dtype)
        compiled.compile()
        yield f"vit {name} compiled", _forward(compiled, given)
    if find_spec("onnxruntime"):
        yield "onnxruntime fp32", _onnxruntime(model, images, "fp32")
        yield "onnxruntime int8", _onnxruntime(model, images, "int8")
    if "timm" in installed_references():
        yield "timm fp32", _forward(build_reference("timm", model)[0].eval(), images)
        if find_spec("torchao") is None:
            progress("  without torchao: it is not installed")
        else:
            yield "timm torchao int8", _torchao(build_reference("timm", model)[0].eval(), images)


def _forward(model: Callable[[Tensor], Tensor], images: Tensor) -> Forward:
    def run() -> Tensor:
        with torch.inference_mode():
            return model(images)

    return run


def _onnxruntime(model: nn.Module, images: Tensor, number: Number) -> Forward:
    import onnxruntime

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        _write(model, (images.shape[2], images.shape[3]), "onnx", path, number)
        session = onnxruntime.InferenceSession(path, _options(), providers=["CPUExecutionProvider"])
    given = {session.get_inputs()[0].name: images.numpy()}
    return lambda: torch.from_numpy(session.run(None, given)[0])


def _write(model: nn.Module, image_size: tuple[int, int], format: Format, path: Path, number: Number) -> None:
    named: dict[str, Any] = {"inside": False, "format": format, "path": path, "source": "model", "description": {}}
    write_program(model, "logits", Preprocessing(image_size=image_size), number=number, **named)


def _options() -> Any:
    """As many threads as torch has: onnxruntime takes one for each physical core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return options


def _torchao(model: nn.Module, images: Tensor) -> Forward:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    quantize_(model, Int8DynamicActivationInt8WeightConfig())
    compiled: Any = torch.compile(model)
    return _forward(compiled, images)
