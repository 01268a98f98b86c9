"""A classifier as a program that runs without this package, for any batch size: torch.export's, ONNX, or compiled."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vit.config import Preprocessing
from vit.deployment.compiled import compile_program
from vit.deployment.onnx_preprocessing import preprocessing_graph
from vit.deployment.torch_preprocessing import ImagePreparation
from vit.models.inference import for_inference, quantizable_layers
from vit.models.model import Model

if TYPE_CHECKING:
    import onnx

Format = Literal["onnx", "torch", "compiled"]
Number = Literal["fp32", "bf16", "int8"]
"""Type of the numbers in the blocks' products."""
Answer = Literal["logits", "softmax", "sigmoid"]
"""The program's output: logits, or probabilities."""
IMAGES = "images"
"""The prepared ones."""
DESCRIPTION = "description.json"
"""Inside torch's files; an ONNX file has its entries as metadata."""
_TRACED_AT = 2
_MOST_PIXELS = 2**16
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default


class Classifier(nn.Module):
    """The model with what stands before and behind it in the program."""

    def __init__(
        self,
        model: nn.Module,
        answer: Answer,
        preparation: ImagePreparation | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.model, self.answer, self.preparation, self.dtype = model, answer, preparation, dtype

    def forward(self, images: Tensor) -> Tensor:
        prepared = images if self.preparation is None else self.preparation(images)
        logits: Tensor = self.model(prepared.to(self.dtype)).float()
        if self.answer == "logits":
            return logits
        return logits.softmax(dim=1) if self.answer == "softmax" else logits.sigmoid()


def write_program(
    model: nn.Module,
    answer: Answer,
    preprocessing: Preprocessing,
    *,
    inside: bool,
    format: Format,
    path: Path,
    source: str,
    description: Mapping[str, str],
    number: Number = "fp32",
) -> None:
    """Write the file. `inside`: it prepares uint8 images (batch, height, width, 3) of any size itself, else it takes
    prepared ones, float32. `number`, not for `torch`: with int8 the products of the blocks are of bytes; bf16 is for
    `compiled` alone.

    ValueError, naming the model's `source`, for a model that cannot be written so.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the exporters
        if format != "onnx":
            preparation = ImagePreparation(preprocessing) if inside else None
            dtype = torch.bfloat16 if number == "bf16" else torch.float32
            program = _exported(
                Classifier(_computing(model, number), answer, preparation, dtype), preprocessing, source
            )
            if format == "torch":
                torch.export.save(program, path, extra_files=dict(description))
            else:
                compile_program(program, path, description, eight_bits=number == "int8")
            return
        import onnx

        program = _exported(Classifier(model, answer), preprocessing, source)
        output = "logits" if answer == "logits" else "probabilities"
        proto = _as_onnx(program, output, source)
        if number == "int8":
            proto = _in_eight_bits(proto, quantizable_layers(model))
        if inside:
            _put_before(proto, preprocessing_graph(preprocessing, IMAGES))
        onnx.helper.set_model_props(proto, dict(description))
        onnx.checker.check_model(proto)
        onnx.save(proto, path)


def _computing(model: nn.Module, number: Number) -> nn.Module:
    """A copy that computes with such numbers, and that torch.export takes."""
    if number == "int8":
        assert isinstance(model, Model)  # `OpenedModel.check_dtype`
        return for_inference(model, "int8", packed=False)
    return deepcopy(model).bfloat16() if number == "bf16" else model


def _exported(classifier: Classifier, preprocessing: Preprocessing, source: str) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=_MOST_PIXELS)
    if classifier.preparation is None:
        images, dims = torch.randn(_TRACED_AT, 3, *preprocessing.image_size), {0: batch}
    else:
        height, width = (2 * side + odd for side, odd in zip(preprocessing.image_size, (5, 9), strict=True))
        images = torch.randint(256, (_TRACED_AT, height, width, 3), dtype=torch.uint8)
        dims = {0: batch, **{axis: torch.export.Dim(f"side{axis}", min=1, max=_MOST_PIXELS) for axis in (1, 2)}}
    try:
        with torch.no_grad():
            return torch.export.export(classifier, (images,), dynamic_shapes={"images": dims})
    except (torch._dynamo.exc.UserError, torch._dynamo.exc.Unsupported) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"model: {source!r} cannot be exported for any batch size ({reason})") from error


def _as_onnx(program: torch.export.ExportedProgram, output: str, source: str) -> onnx.ModelProto:
    """ValueError where torch has no ONNX for a part of it."""
    names: dict[str, Any] = {
        "input_names": [IMAGES],
        "output_names": [output],
        "dynamic_shapes": {IMAGES: {0: "batch"}},
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
    return converted.model_proto


def _in_eight_bits(proto: onnx.ModelProto, layers: Sequence[str]) -> onnx.ModelProto:
    """The program with these linear layers of bytes, vectors rounded at every call, by onnxruntime."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    scopes = {f"'model.{layer}'" for layer in layers}  # of modules, which the exporter notes at every node
    nodes = [node.name for node in proto.graph.node if any(scope in _scopes(node) for scope in scopes)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "quantised.onnx"
        # the file may be run on a processor without VNNI, where sums of two full products would overflow
        options = {"per_channel": True, "reduce_range": True, "weight_type": QuantType.QInt8}
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # advice about a step that the exporter has done
        try:
            quantize_dynamic(proto, path, nodes_to_quantize=nodes, op_types_to_quantize=["MatMul"], **options)
        finally:
            logging.disable(before)
        written = onnx.load(path)
    count = sum(node.op_type == "MatMulInteger" for node in written.graph.node)
    if count != len(layers):  # without a node that fits, onnxruntime quantises all
        raise RuntimeError(
            f"dtype: {count} layers were quantised instead of {len(layers)}; this exporter names them otherwise"
        )
    return written


def _scopes(node: onnx.NodeProto) -> str:
    return next((entry.value for entry in node.metadata_props if entry.key == "pkg.torch.onnx.name_scopes"), "")


def _put_before(proto: onnx.ModelProto, preparation: onnx.GraphProto) -> None:
    """Let the nodes that prepare images, whose output is the input of the program, run first."""
    graph = proto.graph
    nodes = [*preparation.node, *graph.node]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.input.extend(preparation.input)
    graph.initializer.extend(preparation.initializer)


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
