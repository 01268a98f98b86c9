"""Preprocessing inside exported files gives the pixels of evaluation, whatever the image's size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from skimage import data as photographs

from vit.config import Preprocessing
from vit.data.preprocessing import normalize, resize_and_crop
from vit.deployment.onnx_preprocessing import PIXELS, preprocessing_graph
from vit.deployment.torch_preprocessing import ImagePreparation

SIZES = ((97, 131), (131, 97), (224, 224), (33, 40), (41, 200), (300, 451))
CASES: dict[str, dict[str, Any]] = {
    "bicubic": {"image_size": (32, 32)},
    "crop": {"image_size": (32, 32), "crop_fraction": 0.875},
    "bilinear, odd crop": {"image_size": (31, 31), "crop_fraction": 0.9, "interpolation": "bilinear"},
    "rounded down": {"image_size": (31, 31), "crop_fraction": 0.9, "crop_rounding": "down"},
    "squashed": {"image_size": (28, 36), "squash": True},
    "not square": {"image_size": (24, 40), "crop_fraction": 0.95},
    "not antialiased": {"image_size": (32, 32), "antialias": False},
    "not antialiased, bilinear": {"image_size": (32, 32), "antialias": False, "interpolation": "bilinear"},
    "nearest": {"image_size": (32, 32), "interpolation": "nearest"},
    "other order": {"image_size": (32, 32), "channel_order": "bgr", "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)},
}


def image_of(size: tuple[int, int]) -> NDArray[np.uint8]:
    """A part of a photograph, with noise, that has edges and fine structure."""
    height, width = size
    part = np.resize(photographs.astronaut()[:height, :width], (height, width, 3)).astype(np.int64)
    noise = np.random.default_rng(0).integers(-40, 41, (height, width, 3))
    return (part + noise).clip(0, 255).astype(np.uint8)


def expected(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> torch.Tensor:
    return normalize(resize_and_crop(Image.fromarray(pixels), preprocessing)[None], preprocessing)


def levels_apart(found: torch.Tensor, wanted: torch.Tensor, preprocessing: Preprocessing) -> torch.Tensor:
    """Differences in steps of a pixel's 255."""
    std = torch.tensor(preprocessing.std)[:, None, None]
    if preprocessing.channel_order == "bgr":
        std = std.flip(0)
    assert found.shape == wanted.shape
    return (found - wanted).abs() * std * 255


def check_apart(apart: torch.Tensor, preprocessing: Preprocessing) -> None:
    """One level in a few pixels. Pillow adds up the steps between nearest pixels, so that a tie may fall either way."""
    assert (apart > 0.5).float().mean() < (0.04 if preprocessing.interpolation == "nearest" else 0.02)
    assert apart.max() < 1.01 or preprocessing.interpolation == "nearest"


@pytest.mark.parametrize("case", CASES)
def test_onnx_gives_the_pixels_of_evaluation(case: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    helper = pytest.importorskip("onnx").helper
    preprocessing = Preprocessing(**CASES[case])
    graph = preprocessing_graph(preprocessing, "images")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in SIZES:
        pixels = image_of(size)
        found = torch.from_numpy(session.run(None, {PIXELS: pixels[None]})[0])
        apart = levels_apart(found, expected(pixels, preprocessing), preprocessing)
        check_apart(apart, preprocessing)
        both = session.run(None, {PIXELS: np.stack([pixels, pixels[::-1]])})[0]
        np.testing.assert_array_equal(both[:1], found.numpy())


@pytest.mark.parametrize("case", CASES)
def test_torchs_program_gives_the_pixels_of_evaluation(case: str, tmp_path: Path) -> None:
    preprocessing = Preprocessing(**CASES[case])
    dims = {axis: torch.export.Dim(name, min=1, max=2**16) for axis, name in enumerate(("batch", "height", "width"))}
    traced = torch.from_numpy(np.stack([image_of((60, 50))] * 2))
    program = torch.export.export(ImagePreparation(preprocessing), (traced,), dynamic_shapes={"pixels": dims})
    torch.export.save(program, tmp_path / "program.pt2")
    prepare = torch.export.load(tmp_path / "program.pt2").module()
    for size in SIZES:
        pixels = image_of(size)
        apart = levels_apart(prepare(torch.from_numpy(pixels)[None]), expected(pixels, preprocessing), preprocessing)
        check_apart(apart, preprocessing)
