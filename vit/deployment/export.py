"""`vit export`: a classifier as a file for other programs, which is run before it gets its name.

By default the file takes uint8 images of any size and gives probabilities, so that nothing is left to prepare outside.
A JSON file beside it says the same as its metadata, and what the comparison with the model has found.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.backends import cpu

from vit.config import Preprocessing, check, check_arguments
from vit.data.preprocessing import normalize, resize_and_crop
from vit.data.splits import Split, fingerprint
from vit.deployment.compiled import check_compiler, load_compiled
from vit.deployment.errors import TOLERANCES, Unfaithful
from vit.deployment.onnx_preprocessing import PIXELS
from vit.deployment.program import DESCRIPTION, IMAGES, Answer, Format, Number, write_program
from vit.deployment.proof import Answers, Decision, Proof, prove
from vit.hub import OpenedModel
from vit.processor import processor_name
from vit.runs import replace_atomically, write_json
from vit.versions import package_versions

SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2", "compiled": ".pt2"}
BATCH_SIZES = (1, 3)
"""The file is run at these sizes but traced at another, so that a size baked in as a constant shows."""
_ONNX_LIMIT = 2**31
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_FARTHEST = 0.05
"""The largest difference in float32, as a share of the largest output: resized pixels may differ by a level."""
_LARGER = (1.3, 0.8)
"""Height and width of the random images, as shares of the model's."""
CONVENTIONS = {
    PIXELS: "images uint8 (batch, height, width, 3), red, green and blue, of any size; the file prepares them itself",
    IMAGES: "images float32 (batch, 3, height, width), resized and cropped, (pixel / 255 - mean) / std",
    "compiled": "tensors must be contiguous, of this type and shape; checked only with AOTI_RUNTIME_CHECK_INPUTS=1",
    "differences": "largest |file - model| over random inputs, by batch size, on the CPU, the model in float32",
}


@dataclass(frozen=True)
class Trial:
    """Images that file and model are both asked about."""

    split: Split
    decision: Decision
    images: str
    """The images' description, in the plural."""
    tolerance: float = TOLERANCES["fp32"]
    """The largest difference in accuracy, a fraction, with which the file is written."""


@dataclass(frozen=True)
class Exported:
    """A file that was written and run."""

    path: Path
    num_bytes: int
    output: str
    """`probabilities` or `logits`."""
    differences: dict[int, float]
    """Batch size → largest |difference| of an output."""
    largest: float
    """The scale of the differences."""
    seconds: float
    """Time that writing took, the compiler included."""
    proof: Proof | None = None

    def text(self) -> str:
        """Format one line for each batch size, and one for the images."""
        beside = f"{self.path.name}.json beside it"
        written = f"written in {self.seconds:.1f} s"
        lines = [f"{self.path}: {self.num_bytes / 2**20:.1f} MiB, {self.output}, {written}; {beside}"]
        for batch_size, difference in self.differences.items():
            share = difference / self.largest if self.largest else 0.0
            lines.append(
                f"batch of {batch_size}: largest difference {difference:.2e}, {share:.1e} of the largest of the "
                f"{self.output} ({self.largest:.3g})"
            )
        missing = "not compared on images: name some with classes by --data"
        return "\n".join([*lines, missing if self.proof is None else self.proof.text()])


def check_export(format: Format, output: Path) -> None:
    """Raise ValueError for a wrong suffix and for missing packages."""
    check(output.suffix == SUFFIXES[format], "--output", str(output), f"its name must end in {SUFFIXES[format]}")
    check(not output.is_dir(), "--output", str(output), "it is a folder")
    beside = output.with_name(f"{output.name}.json")
    check(not beside.is_dir(), "--output", str(output), f"its description goes to {beside}, which is a folder")
    missing = [name for name in _ONNX_PACKAGES if format == "onnx" and importlib.util.find_spec(name) is None]
    check(not missing, "--format", format, f"it needs {', '.join(missing)}; pip install 'vit[export]'")
    if format == "compiled":
        check_compiler()


@check_arguments
def export_classifier(
    opened: OpenedModel,
    format: Format,
    output: str | Path,
    *,
    logits: bool = False,
    precision: Literal["fp32", "bf16"] = "fp32",
    trial: Trial | None = None,
) -> Exported:
    """Write `output` and `output`.json; existing ones are replaced only once the new file has been run.

    The file takes uint8 images (batch, height, width, 3) of any size and gives probabilities (batch, classes); with
    `logits`, it takes prepared images (batch, 3, height, width) and gives logits. `compiled` is for this machine's
    processor, in float32 or in bfloat16 (`precision`). An ONNX or compiled file of a model that was opened
    with `dtype="int8"` multiplies bytes in the blocks. Every file is compared with the model in float32. With a
    `trial`, both are asked about its images; an interrupted trial continues with the same call. The model computes in
    float32 on the CPU from then on.

    ValueError for a model that cannot be exported, for weights too large for one ONNX file, for a precision that the
    format or the model does not have, and for `compiled` without a C++ compiler. `Unfaithful` for a file
    whose accuracy is further from the model's than the trial allows, or, without a trial, whose outputs for random
    images are not the model's, and for one whose outputs are not numbers; it is removed.
    """
    output = Path(output)
    check_export(format, output)
    number = _number(opened, format, precision)
    rule = "it has no head; `vit convert` writes its weights for other libraries"
    check(opened.num_classes > 0, "model", opened.source, rule)
    model, preprocessing = opened.model.cpu().float().eval(), opened.preprocessing
    answer: Answer = "logits" if logits else "sigmoid" if opened.multilabel else "softmax"
    if format == "onnx":
        _check_fits_onnx(model)
    described = _description(opened, answer, format, number)
    sides = _Sides(model, preprocessing, answer)
    with _folder_for(output), replace_atomically(output) as unfinished:
        entries, begun = _entries(described, format), time.perf_counter()
        write_program(
            model,
            answer,
            preprocessing,
            inside=not logits,
            format=format,
            path=unfinished,
            source=opened.source,
            description=entries,
            number=number,
        )
        seconds = time.perf_counter() - begun
        run = _load_runner(unfinished, format)
        differences, largest = _compare(sides, run)
        if trial is None or not all(map(math.isfinite, differences.values())):  # a trial says more
            _check_differences(differences, largest, number)
        found = None if trial is None else _try_out(trial, sides, run, output, [opened.identity, described])
        name = "logits" if logits else "probabilities"
        written = Exported(output, unfinished.stat().st_size, name, differences, largest, seconds, found)
    results = {"differences": {str(size): value for size, value in differences.items()}, "largest": largest}
    proven = {} if found is None else {"proof": found.record()}
    write_json(output.with_name(f"{output.name}.json"), {**described, **results, **proven})
    return written


@contextmanager
def _folder_for(output: Path) -> Iterator[None]:
    """Make the file's folder; after an error, what was made for nothing is gone."""
    missing = [folder for folder in output.parents if not folder.exists()]
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # a comparison that was interrupted lies there, and continues
            for folder in missing:
                folder.rmdir()
        raise


def _check_fits_onnx(model: nn.Module) -> None:
    total = sum(tensor.nbytes for tensor in model.state_dict().values())
    rule = f"weights of {total / 2**30:.1f} GiB do not fit into one ONNX file (2 GiB); use --format torch"
    check(total < _ONNX_LIMIT, "--format", "onnx", rule)


def _number(opened: OpenedModel, format: Format, precision: Literal["fp32", "bf16"]) -> Number:
    if opened.dtype == "auto":
        rule = "bfloat16 is written with --format compiled"
        check(precision == "fp32" or format == "compiled", "--precision", precision, rule)
        return precision
    rule = "eight bits are written with --format onnx or compiled"
    check(format != "torch", "--dtype", opened.dtype, rule)
    check(precision == "fp32", "--precision", precision, "with --dtype int8 the rest computes in float32")
    return "int8"


Run = Callable[[NDArray[Any]], Answers]
"""A file, as a function from its input."""


@dataclass(frozen=True)
class _Sides:
    """The model and the file, both from images to what the file gives."""

    model: nn.Module
    preprocessing: Preprocessing
    answer: Answer

    def prepared(self, image: Image.Image) -> torch.Tensor:
        return normalize(resize_and_crop(image, self.preprocessing)[None], self.preprocessing)

    def by_model(self, image: Image.Image) -> Answers:
        with torch.inference_mode():
            logits = self.model(self.prepared(image))[0]
        probabilities = {"logits": logits, "softmax": logits.softmax(dim=0), "sigmoid": logits.sigmoid()}
        return cast(Answers, probabilities[self.answer].numpy())

    def given(self, image: Image.Image) -> NDArray[Any]:
        """The file's input, without its axis of images."""
        return self.prepared(image)[0].numpy() if self.answer == "logits" else np.array(image)

    def by_file(self, run: Run) -> Callable[[Image.Image], Answers]:
        return lambda image: run(self.given(image)[None])[0]


def _load_runner(path: Path, format: Format) -> Run:
    if format != "onnx":
        program = torch.export.load(path).module() if format == "torch" else load_compiled(path)

        def run_program(inputs: NDArray[Any]) -> Answers:
            with torch.inference_mode():
                return cast(Answers, program(torch.from_numpy(inputs)).numpy())

        return run_program
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda inputs: cast(Answers, session.run(None, {name: inputs})[0])


def _compare(sides: _Sides, run: Run) -> tuple[dict[int, float], float]:
    """On smooth random images of another size and shape than the model's."""
    generator = np.random.default_rng(0)
    shares = zip(sides.preprocessing.image_size, _LARGER, strict=True)
    height, width = (max(1, round(side * more)) for side, more in shares)
    differences, largest = {}, 0.0
    for batch_size in BATCH_SIZES:
        coarse = generator.integers(0, 256, (batch_size, 7, 7, 3), dtype=np.uint8)
        images = [Image.fromarray(each).resize((width, height), Image.Resampling.BICUBIC) for each in coarse]
        expected = np.stack([sides.by_model(image) for image in images])
        found = run(np.stack([sides.given(image) for image in images]))
        assert found.shape == expected.shape, f"{found.shape} for {expected.shape}"
        differences[batch_size] = float(np.abs(found - expected).max())
        largest = max(largest, float(np.abs(expected).max()))
    return differences, largest


def _try_out(trial: Trial, sides: _Sides, run: Run, output: Path, file: list[Any]) -> Proof:
    """Ask file and model about the trial's images; `Unfaithful` beyond its tolerance. `file` says what is continued."""
    key = json.dumps([*file, fingerprint(trial.split)], sort_keys=True)
    kept, answers = output.with_name(f".{output.name}.proof.npz"), sides.by_file(run)
    found = prove(sides.by_model, answers, trial.split, trial.decision, images=trial.images, progress=kept, key=key)
    found.check(trial.tolerance)
    return found


def _check_differences(differences: dict[int, float], largest: float, number: Number) -> None:
    """Unfaithful for differences that rounding cannot explain, of pixels too: far more, or not a number."""
    difference = max(differences.values(), key=lambda value: (math.isnan(value), value))
    limit = _FARTHEST * largest if number == "fp32" else sys.float_info.max
    if not difference <= limit:
        what = (
            f"its outputs for random images differ from the model's by {difference:.2g} (the largest is {largest:.2g})"
        )
        raise Unfaithful(f"export: the file is not written: {what}")


def _description(opened: OpenedModel, answer: Answer, format: Format, number: Number) -> dict[str, Any]:
    height, width = opened.preprocessing.image_size
    if answer == "logits":
        name, kind, shape = IMAGES, "float32", ["batch", 3, height, width]
    else:
        name, kind, shape = PIXELS, "uint8", ["batch", "height", "width", 3]
    said = (name, *(("compiled",) if format == "compiled" else ()), "differences")
    packages = ("torch", *(("onnx", "onnxruntime") if format == "onnx" else ()))
    activation = "sigmoid" if opened.multilabel else "softmax"
    output = (
        f"logits float32 (batch, classes), before the {activation}"
        if answer == "logits"
        else f"probabilities float32 (batch, classes), by a {answer}"
    )
    return {
        "model": opened.source,
        "weights": opened.identity,
        "input": {"name": name, "type": kind, "shape": shape},
        "output": {
            "name": "logits" if answer == "logits" else "probabilities",
            "type": "float32",
            "shape": ["batch", opened.num_classes],
        },
        "preprocessing": asdict(opened.preprocessing),
        "class_names": opened.class_names,
        **({"random_weights": True} if opened.provenance.is_random else {}),
        "computed_by": opened.implementation,
        "computes_with": number,
        **({"compiled_for": f"{processor_name()}, {cpu.get_cpu_capability()}"} if format == "compiled" else {}),
        "versions": package_versions(packages),
        "conventions": {each: CONVENTIONS[each] for each in said} | {"output": output},
    }


def _entries(described: dict[str, Any], format: Format) -> dict[str, str]:
    """The description as the file holds it: texts by name in ONNX, one JSON text in torch's."""
    if format != "onnx":
        return {DESCRIPTION: json.dumps(described)}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in described.items()}
