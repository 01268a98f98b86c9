"""Preprocessing at evaluation as ONNX nodes: images of any size in, normalised ones out.

The sizes and corners are those of `vit.data.preprocessing`. onnxruntime resamples uint8 with antialiasing in integers,
as Pillow does; one level of 255 differs in about one pixel of a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vit.config import Preprocessing

if TYPE_CHECKING:
    import onnx

PIXELS = "pixels"
_MODES = {"bicubic": "cubic", "bilinear": "linear"}


class _Graph:
    """Nodes and constants, each output with a name of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any, kind: Any = np.int64) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype=kind), name))
        return name

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        from onnx import helper

        name = output or f"prepared_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name


def preprocessing_graph(preprocessing: Preprocessing, output: str) -> onnx.GraphProto:
    """A graph from `pixels`, uint8 (batch, height, width, 3), to `output`, float32 (batch, 3, *image_size)."""
    from onnx import TensorProto, helper

    graph = _Graph()
    images = graph.add("Transpose", PIXELS, perm=[0, 3, 1, 2])  # b c h w
    shape = graph.add("Shape", images)
    batch_and_channels, height, width = (
        graph.add("Slice", shape, graph.constant([first]), graph.constant([last]))
        for first, last in ((0, 2), (2, 3), (3, 4))
    )
    new_height, new_width = _resized_size(graph, preprocessing, height, width)
    cropped = _resize(graph, preprocessing, images, [batch_and_channels, height, width], [new_height, new_width])
    for axis, side, kept in ((2, new_height, preprocessing.image_size[0]), (3, new_width, preprocessing.image_size[1])):
        first = _corner(graph, preprocessing, side, kept)
        last = graph.add("Add", first, graph.constant([kept]))
        cropped = graph.add("Slice", cropped, first, last, graph.constant([axis]))
    levels = graph.add("Cast", cropped, to=TensorProto.FLOAT)
    shares = graph.add("Div", levels, graph.constant(255, np.float32))
    mean, std = (
        graph.constant(np.array(values)[:, None, None], np.float32)
        for values in (preprocessing.mean, preprocessing.std)
    )
    normalized = graph.add("Div", graph.add("Sub", shares, mean), std)
    order = graph.constant([0, 1, 2] if preprocessing.channel_order == "rgb" else [2, 1, 0])
    graph.add("Gather", normalized, order, output=output, axis=1)
    given = helper.make_tensor_value_info(PIXELS, TensorProto.UINT8, ["batch", "height", "width", 3])
    made = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", 3, *preprocessing.image_size])
    return helper.make_graph(graph.nodes, "preprocessing", [given], [made], graph.constants)


def _resized_size(graph: _Graph, preprocessing: Preprocessing, height: str, width: str) -> tuple[str, str]:
    from onnx import TensorProto

    target = [math.floor(side / preprocessing.crop_fraction) for side in preprocessing.image_size]
    if preprocessing.squash:
        return graph.constant(target[:1]), graph.constant(target[1:])
    if target[0] == target[1]:
        shorter, wanted = graph.add("Min", height, width), graph.constant(target[:1])
        scaled = [graph.add("Div", graph.add("Mul", wanted, side), shorter) for side in (height, width)]
        return scaled[0], scaled[1]
    sides = [graph.add("Cast", side, to=TensorProto.DOUBLE) for side in (height, width)]
    wanted_sides = [graph.constant([side], np.float64) for side in target]
    shrink = graph.add("Min", *(graph.add("Div", *pair) for pair in zip(sides, wanted_sides, strict=True)))
    nearest = [graph.add("Round", graph.add("Div", side, shrink)) for side in sides]
    rounded = [graph.add("Cast", side, to=TensorProto.INT64) for side in nearest]
    return rounded[0], rounded[1]


def _resize(graph: _Graph, preprocessing: Preprocessing, images: str, shape: Sequence[str], new: Sequence[str]) -> str:
    """`shape`: batch and channels, height and width; `new`: height and width."""
    from onnx import TensorProto

    batch_and_channels, height, width = shape
    if preprocessing.interpolation == "nearest":
        for axis, side, new_side in ((2, height, new[0]), (3, width, new[1])):
            images = graph.add("Gather", images, _nearest_pixels(graph, side, new_side), axis=axis)
        return images
    mode = {"mode": _MODES[preprocessing.interpolation], "coordinate_transformation_mode": "half_pixel"}
    if preprocessing.antialias:
        sizes = graph.add("Concat", batch_and_channels, *new, axis=0)
        return graph.add("Resize", images, "", "", sizes, antialias=1, cubic_coeff_a=-0.5, exclude_outside=1, **mode)
    levels = graph.add("Cast", images, to=TensorProto.FLOAT)
    half, none, most = (graph.constant(value, np.float32) for value in (0.5, 0, 255))
    for new_height, new_width in ((height, new[1]), tuple(new)):  # torch rounds after each of the two passes
        sizes = graph.add("Concat", batch_and_channels, new_height, new_width, axis=0)
        resized = graph.add("Resize", levels, "", "", sizes, cubic_coeff_a=-0.75, **mode)
        levels = graph.add("Clip", graph.add("Floor", graph.add("Add", resized, half)), none, most)
    return levels


def _nearest_pixels(graph: _Graph, side: str, new_side: str) -> str:
    """The pixel of the old side, int64 (new_side,), in which the centre of each new one lies."""
    from onnx import TensorProto

    first, step = graph.constant(0), graph.constant(1)
    numbers = graph.add("Range", first, graph.add("Squeeze", new_side), step)
    old, new, places = (graph.add("Cast", name, to=TensorProto.DOUBLE) for name in (side, new_side, numbers))
    centres = graph.add("Add", places, graph.constant(0.5, np.float64))
    return graph.add("Cast", graph.add("Div", graph.add("Mul", centres, old), new), to=TensorProto.INT64)


def _corner(graph: _Graph, preprocessing: Preprocessing, side: str, kept: int) -> str:
    """The half of what is cut off, rounded down or, where that is said, to the even pixel."""
    two = graph.constant([2])
    cut = graph.add("Sub", side, graph.constant([kept]))
    half = graph.add("Div", cut, two)
    if preprocessing.crop_rounding == "down":
        return half
    odd_pixel = graph.add("Mul", graph.add("Mod", cut, two), graph.add("Mod", half, two))
    return graph.add("Add", half, odd_pixel)
