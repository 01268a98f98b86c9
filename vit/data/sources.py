"""The sources of images by `data.name`: numbered images with labels and names, decoded one at a time.

To add a source, open it in `open_source` and name it in `vit.config.DATA_SETS`; folders are in `folders`, `undivided`.
Sources can be pickled, for worker processes.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.config import DATA_SETS, DataConfig, check, check_no_pipe, nearest
from vit.data.decoding import DECODE_ERRORS, MissingImages, only_known_formats, raise_unreadable, to_rgb
from vit.data.folders import check_root, open_test_folder, open_training_folder
from vit.data.lists import LISTS
from vit.data.splits import ImageSource, stratified
from vit.data.undivided import Part, check_no_cut, is_undivided, open_undivided

_DIGITS_TEST_SEED = 1797
_FAKE_SIDE = 32


def open_source(config: DataConfig, part: Part) -> ImageSource:
    """Open a part of the data set `data.name`. ValueError for an unknown name."""
    if config.name == "digits":
        return open_digits(part)
    if config.name == "fake":
        return open_fake(config, part)
    if config.name == "imagefolder":
        _check_place(config)
        if is_undivided(config):
            return open_undivided(config, part)
        check_no_cut(config, f"{config.root} has a test set")
        return open_training_folder(config) if part == "train" else open_test_folder(config)
    if config.name in ("cifar10", "cifar100"):
        return open_torchvision(config, config.name.upper(), part)
    if config.name == "imagenette":  # the published version with a shorter side of 320, enough for any crop at 224
        return open_torchvision(config, "Imagenette", part, size="320px")
    kind, _, class_name = config.name.partition(":")
    if kind == "torchvision" and class_name:
        return open_torchvision(config, class_name, part)
    raise ValueError(f"data.name: {config.name!r} is not a known data set: {nearest(config.name, DATA_SETS)}")


def _check_place(config: DataConfig) -> None:
    root = Path(config.root)
    check_no_pipe("data.root", root)
    if root.suffix.lower() in LISTS and not root.exists():
        raise MissingImages(f"data.root: there is no file {str(root.absolute())!r}")
    check_root(config)


@dataclass(frozen=True)
class ArraySource:
    """Images of one size kept in memory, uint8 (n, h, w)."""

    pixels: np.ndarray
    labels: Tensor
    class_names: list[str]
    names: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:  # noqa: ARG002
        return Image.fromarray(self.pixels[index]).convert("RGB")

    def name(self, index: int) -> str:
        return self.names[index]


def open_digits(part: Part) -> ArraySource:
    """Open scikit-learn's 1,797 handwritten digits, 8×8; a fixed stratified fifth is the test set."""
    from sklearn.datasets import load_digits  # takes a second to import

    digits = load_digits()
    labels = torch.from_numpy(digits.target.astype(np.int64))
    is_test = stratified(labels, 0.2, seed=_DIGITS_TEST_SEED, stream="test")
    chosen = torch.nonzero(is_test if part == "test" else ~is_test).flatten()
    levels = (digits.images.astype(np.int64) * 255 + 8) // 16  # n h w; 17 grey levels, stretched to 0..255
    return ArraySource(
        pixels=levels.astype(np.uint8)[chosen.numpy()],
        labels=labels[chosen],
        class_names=[str(digit) for digit in range(10)],
        names=[f"digits/{index:04d}" for index in chosen.tolist()],
    )


class FakeSource:
    """Synthetic images whose classes differ in the colour, direction and width of stripes, under noise.

    Every pixel is a function of the part and the index, the same on every machine.
    """

    def __init__(self, part: Part, num_images: int, num_classes: int) -> None:
        self.part = part
        self.class_names = [f"pattern {number}" for number in range(num_classes)]
        self.labels = torch.arange(num_images, dtype=torch.int64) % num_classes

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:  # noqa: ARG002
        # raw bits of a counter-based generator: only those are guaranteed by numpy never to change
        stream = np.random.Philox(key=np.array([self.part == "test", index], dtype=np.uint64))
        bits = stream.random_raw(1 + _FAKE_SIDE * _FAKE_SIDE * 3 // 8)
        noise = bits[1:].view(np.uint8).reshape(_FAKE_SIDE, _FAKE_SIDE, 3) / 255 - 0.5
        turn = 2 * math.pi * int(self.labels[index]) / len(self.class_names)
        rows, columns = np.indices((_FAKE_SIDE, _FAKE_SIDE))
        along = rows * math.cos(turn / 2) + columns * math.sin(turn / 2)
        phase = 2 * math.pi * float(bits[0]) / 2**64
        stripes = np.sin(along * (0.5 + turn / 12) + phase)[:, :, None]  # h w 1
        colours = np.cos(turn - 2 * math.pi * np.arange(3) / 3)
        pixels = 128 + 40 * colours + 30 * stripes + 80 * noise  # h w c
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))

    def name(self, index: int) -> str:
        return f"fake/{self.part}/{index}"


def open_fake(config: DataConfig, part: Part) -> FakeSource:
    count = config.fake_images if part == "train" else max(1, config.fake_images // 4)
    return FakeSource(part, count, config.fake_classes)


@dataclass(frozen=True)
class TorchvisionSource:
    """A torchvision data set whose samples are (PIL image, class number)."""

    dataset: Any
    labels: Tensor
    class_names: list[str]
    prefix: str

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:  # noqa: ARG002
        try:
            with only_known_formats():
                return to_rgb(self.dataset[index][0])
        except DECODE_ERRORS as error:
            raise_unreadable(self.name(index), error)

    def name(self, index: int) -> str:
        return f"{self.prefix}/{index}"


def open_torchvision(config: DataConfig, class_name: str, part: Part, **fixed: str) -> TorchvisionSource:
    """Open `torchvision.datasets.<class_name>` with `train=` or `split=`; download it with `data.download`."""
    from torchvision import datasets

    known = [name for name in datasets.__all__ if name != "wrap_dataset_for_transforms_v2"]
    if not inspect.isclass(getattr(datasets, class_name, None)):  # some are modules
        raise ValueError(f"data.name: torchvision has no data set {class_name!r}: {nearest(class_name, known)}")
    constructor = getattr(datasets, class_name)
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    named = [item for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]
    needed = [item.name for item in named if item.default is item.empty and item.name not in ("train", "split")]
    rule = f"it needs {', '.join(needed)} besides its folder; arrange its images as data.name 'imagefolder'"
    check(not needed, "data.name", config.name, rule)
    dataset = _construct_part(constructor, config, part, fixed)
    labels = _read_labels(dataset, config.name)
    classes = getattr(dataset, "classes", None) or [str(number) for number in range(int(labels.max()) + 1)]
    class_names = [name if isinstance(name, str) else str(name[0]) for name in classes]  # Imagenette's are tuples
    rule = f"its files are damaged: they have a label {int(labels.max())}, and it names {len(class_names)} classes"
    check(int(labels.max()) < len(class_names), "data.name", config.name, rule)
    return TorchvisionSource(dataset, labels, class_names, f"{class_name}/{part}")


def _construct_part(constructor: Any, config: DataConfig, part: Part, fixed: dict[str, str]) -> Any:
    parameters = inspect.signature(constructor).parameters
    if "train" in parameters:
        return _construct(constructor, config, {"train": part == "train", **fixed})
    if "split" not in parameters:
        rule = "this torchvision set is not divided into train and test; arrange it as data.name 'imagefolder'"
        raise MissingImages(f"data.name: {config.name!r} is not valid: {rule}")
    for split in ("train", "trainval") if part == "train" else ("test", "val", "valid"):
        try:
            return _construct(constructor, config, {"split": split, **fixed})
        except ValueError as error:
            if "Unknown value" not in str(error):
                raise
    raise MissingImages(f"data.name: {config.name!r} is not valid: this torchvision set has no {part} split")


def _construct(constructor: Any, config: DataConfig, arguments: dict[str, Any]) -> Any:
    try:
        return constructor(config.root, **arguments)
    except (RuntimeError, FileNotFoundError) as error:
        reason = str(error).split("\n")[0]
    can_download = "download" in inspect.signature(constructor).parameters
    if not config.download or not can_download:
        how = "pass --data.download true to fetch it" if can_download else "torchvision cannot download this set"
        raise MissingImages(
            f"data.root: {config.name} is not in {str(Path(config.root).absolute())!r} ({reason}): {how}, "
            "or point data.root at the folder that holds it"
        )
    try:
        return constructor(config.root, download=True, **arguments)
    except (RuntimeError, OSError) as error:
        raise OSError(f"data.download: {config.name} could not be fetched: {error}") from error


def _read_labels(dataset: Any, name: str) -> Tensor:
    """Class numbers from the attributes of torchvision's sets, else from the samples one by one."""
    values: Any = None
    for attribute in ("targets", "labels", "_labels"):
        if values is None:
            values = getattr(dataset, attribute, None)
    for attribute in ("samples", "_samples"):
        if values is None and hasattr(dataset, attribute):
            values = [sample[1] for sample in getattr(dataset, attribute)]
    if values is None:
        values = [dataset[index][1] for index in range(len(dataset))]
    try:
        labels = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        labels = torch.zeros(0)
    valid = not labels.is_floating_point() and labels.shape == (len(dataset),) and len(labels) and labels.min() >= 0
    check(bool(valid), "data.name", name, "its samples are not (image, class number) pairs")
    return labels.to(torch.int64)
