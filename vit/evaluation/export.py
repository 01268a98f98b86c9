"""Export of a classifier to a file that runs without this package: ONNX or `torch.export`, for any batch size.

The file is run before it gets its name, and its logits are compared with the model's. A JSON file beside it describes
the preprocessing of its input.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vit.config import check, check_arguments
from vit.hub import OpenedModel
from vit.runs import replace_atomically, write_json

Format = Literal["onnx", "torch"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2"}
BATCH_SIZES = (1, 3)
"""The file is run at these sizes but traced at another, so that a size baked in as a constant shows."""
_TRACED_AT = 2
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_ONNX_LIMIT = 2**31
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
CONVENTIONS = {
    "input": "images float32 (batch, 3, height, width), resized and cropped, (pixel / 255 - mean) / std",
    "differences": "largest |file - model| over standard normal inputs, by batch size, on the CPU in float32",
}


@dataclass(frozen=True)
class Exported:
    """A file that was written and run."""

    path: Path
    num_bytes: int
    differences: dict[int, float]
    """Batch size → largest |difference| of a logit."""
    largest_logit: float
    """The scale of the differences."""

    def text(self) -> str:
        """Format one line for each batch size."""
        beside = f"{self.path.name}.json beside it: preprocessing and class names"
        lines = [f"{self.path}: {self.num_bytes / 2**20:.1f} MiB; {beside}"]
        for batch_size, difference in self.differences.items():
            share = difference / self.largest_logit if self.largest_logit else 0.0
            lines.append(
                f"batch of {batch_size}: largest difference {difference:.2e} of a logit, "
                f"{share:.1e} of the largest logit ({self.largest_logit:.3g})"
            )
        return "\n".join(lines)


class _Classifier(nn.Module):
    """Hides other arguments of the model's `forward` from the exporter."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits


def check_export(format: Format, output: Path) -> None:
    """Raise ValueError for a wrong suffix and for missing packages."""
    check(output.suffix == SUFFIXES[format], "--output", str(output), f"its name must end in {SUFFIXES[format]}")
    check(not output.is_dir(), "--output", str(output), "it is a folder")
    missing = [name for name in _ONNX_PACKAGES if format == "onnx" and importlib.util.find_spec(name) is None]
    check(not missing, "--format", format, f"it needs {', '.join(missing)}; pip install 'vit[export]'")


@check_arguments
def export_classifier(opened: OpenedModel, format: Format, output: str | Path) -> Exported:
    """Write `output` and `output`.json; existing ones are replaced only once the new file has been run.

    ValueError for a model that cannot be exported, and for weights too large for one ONNX file.
    """
    output = Path(output)
    check_export(format, output)
    model = _Classifier(opened.model.cpu().float().eval())
    size = opened.preprocessing.image_size
    if format == "onnx":
        total = sum(tensor.nbytes for tensor in model.state_dict().values())
        rule = f"weights of {total / 2**30:.1f} GiB do not fit into one ONNX file (2 GiB); use --format torch"
        check(total < _ONNX_LIMIT, "--format", format, rule)
    output.parent.mkdir(parents=True, exist_ok=True)
    with replace_atomically(output) as unfinished:
        _write(_exported_program(model, size, opened.source), format, unfinished, opened.source)
        differences, largest = _compare(model, _load_runner(unfinished, format), size)
        written = Exported(output, unfinished.stat().st_size, differences, largest)
    write_json(output.with_name(f"{output.name}.json"), _description(opened, written))
    return written


def _exported_program(model: nn.Module, size: tuple[int, int], source: str) -> torch.export.ExportedProgram:
    images = torch.randn(_TRACED_AT, 3, *size)
    batch = torch.export.Dim("batch", min=1, max=2**16)
    try:
        with torch.no_grad():
            return torch.export.export(model, (images,), dynamic_shapes={"images": {0: batch}})
    except (torch._dynamo.exc.UserError, torch._dynamo.exc.Unsupported) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"model: {source!r} cannot be exported for any batch size ({reason})") from error


def _write(program: torch.export.ExportedProgram, format: Format, path: Path, source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the exporters
        if format == "torch":
            torch.export.save(program, path)
        else:
            _as_onnx(program, source).save(path, external_data=False)


def _as_onnx(program: torch.export.ExportedProgram, source: str) -> torch.onnx.ONNXProgram:
    """ValueError where torch has no ONNX for a part of it."""
    names: dict[str, Any] = {
        "input_names": ["images"],
        "output_names": ["logits"],
        "dynamic_shapes": {"images": {0: "batch"}},
    }
    try:
        with sdpa_kernel(SDPBackend.MATH):  # a bias leaves the others' output in an order that cannot be viewed
            program = program.run_decompositions({_ATTENTION: _attention_of_four_axes})
            converted = torch.onnx.export(program, dynamo=True, verbose=False, **names)
    except torch.onnx.OnnxExporterError as error:
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__
        reason = " ".join(str(first).split())[:300]
        raise ValueError(f"model: {source!r} cannot be written as ONNX ({reason}); use --format torch") from error
    assert converted is not None
    return converted


def _attention_of_four_axes(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *options: Any, **named: Any
) -> Tensor:
    """Attention over `… n d` as over `b 1 n d`: torch has ONNX for four axes only. timm's SAM and Hiera have others."""
    if query.dim() == 4:
        return NotImplemented  # torch leaves it as it is
    several = query.shape[:-2]
    mask = None if attn_mask is None else attn_mask.expand(*several, -1, -1).flatten(0, -3)[:, None]  # b 1 n m
    query, key, value = (tensor.flatten(0, -3)[:, None] for tensor in (query, key, value))  # b 1 n d
    attended = nn.functional.scaled_dot_product_attention(query, key, value, mask, *options, **named)
    return attended[:, 0].reshape(*several, *attended.shape[2:])  # … n d


def _load_runner(path: Path, format: Format) -> Callable[[Tensor], Tensor]:
    """Load the file as a function from images to logits."""
    if format == "torch":
        return torch.export.load(path).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _compare(
    model: nn.Module, run: Callable[[Tensor], Tensor], size: tuple[int, int]
) -> tuple[dict[int, float], float]:
    generator = torch.Generator().manual_seed(0)
    differences, largest = {}, 0.0
    for batch_size in BATCH_SIZES:
        images = torch.randn(batch_size, 3, *size, generator=generator)
        with torch.no_grad():
            expected, found = model(images), run(images)
        assert found.shape == expected.shape, f"{tuple(found.shape)} for {tuple(expected.shape)}"
        differences[batch_size] = float((found - expected).abs().max())
        largest = max(largest, float(expected.abs().max()))
    return differences, largest


def _description(opened: OpenedModel, written: Exported) -> dict[str, Any]:
    height, width = opened.preprocessing.image_size
    activation = "sigmoid" if opened.multilabel else "softmax"
    packages = ("torch", *(("onnx", "onnxruntime") if written.path.suffix == SUFFIXES["onnx"] else ()))
    return {
        "model": opened.source,
        "weights": opened.identity,
        "input": {"name": "images", "type": "float32", "shape": ["batch", 3, height, width]},
        "output": {"name": "logits", "type": "float32", "shape": ["batch", opened.num_classes]},
        "preprocessing": asdict(opened.preprocessing),
        "class_names": opened.class_names,
        "computed_by": opened.implementation,
        "differences": {str(size): value for size, value in written.differences.items()},
        "largest_logit": written.largest_logit,
        "versions": {name: version(name) for name in packages},
        "conventions": CONVENTIONS | {"output": f"logits float32 (batch, classes), before the {activation}"},
    }
