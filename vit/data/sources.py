"""The data sets as `ImageSource`s: numbered images with labels and names, decoded one at a time.

Owns where the pixels of `digits`, `fake` and torchvision's sets come from (folders: `folders.py`). Knows
nothing of splits, batches or models. Everything here can be pickled, so that a worker process can read it.
"""

from __future__ import annotations

import gzip
import inspect
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.config import DataConfig, nearest
from vit.data.decoding import DECODE_ERRORS, BrokenImage, to_rgb
from vit.data.splits import stratified

Part = Literal["train", "test"]

_DIGITS_TEST_SEED = 1797
_FAKE_SIDE = 32


class ImageSource(Protocol):
    """Numbered images. `labels` is int64 of shape (n,), places in `class_names`."""

    @property
    def class_names(self) -> list[str]: ...

    @property
    def labels(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:
        """The image in RGB; raises BrokenImage.

        A source may give it at a reduced scale where that is faster, but not below `smallest` (width,
        height).
        """

    def name(self, index: int) -> str:
        """What a person finds the image by; the same on every machine."""


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
    """Scikit-learn's 1,797 handwritten digits, 8×8; a stratified fifth, fixed for ever, is the test set."""
    rows = _read_digits()
    labels = torch.from_numpy(rows[:, -1])
    is_test = stratified(labels, 0.2, seed=_DIGITS_TEST_SEED, stream="test")
    chosen = torch.nonzero(is_test if part == "test" else ~is_test).flatten()
    levels = (rows[:, :-1].reshape(-1, 8, 8) * 255 + 8) // 16  # n h w; 17 grey levels stay 17 levels
    return ArraySource(
        pixels=levels.astype(np.uint8)[chosen.numpy()],
        labels=labels[chosen],
        class_names=[str(digit) for digit in range(10)],
        names=[f"digits/{index:04d}" for index in chosen.tolist()],
    )


def _read_digits() -> np.ndarray:
    """int64 (n, 65): 64 grey levels and the digit. The file alone: importing scikit-learn would take seconds."""
    package = find_spec("sklearn")
    assert package is not None, "vit depends on scikit-learn"
    assert package.origin is not None
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz") as file:
        return np.loadtxt(file, delimiter=",", dtype=np.int64)


class FakeSource:
    """Synthetic images whose class shows in the colour, direction and width of their stripes, under noise.

    Every pixel is a function of the part and the index: no files, the same on every machine.
    """

    def __init__(self, part: Part, num_images: int, num_classes: int) -> None:
        self.part = part
        self.class_names = [f"pattern {number}" for number in range(num_classes)]
        self.labels = torch.arange(num_images, dtype=torch.int64) % num_classes

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:  # noqa: ARG002
        # Counter-based, and the raw bits because numpy promises those alone never to change.
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
    """Any torchvision set that gives (PIL image, class number)."""

    dataset: Any
    labels: Tensor
    class_names: list[str]
    prefix: str

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int, *, smallest: tuple[int, int] | None = None) -> Image.Image:  # noqa: ARG002
        try:
            return to_rgb(self.dataset[index][0])
        except DECODE_ERRORS as error:
            raise BrokenImage(self.name(index), str(error)) from error

    def name(self, index: int) -> str:
        return f"{self.prefix}/{index}"


def open_torchvision(config: DataConfig, class_name: str, part: Part, **fixed: str) -> TorchvisionSource:
    """`torchvision.datasets.<class_name>` with `train=` or `split=`; downloaded if asked and missing."""
    from torchvision import datasets

    known = [name for name in datasets.__all__ if name != "wrap_dataset_for_transforms_v2"]
    if not inspect.isclass(getattr(datasets, class_name, None)):  # some are modules
        raise ValueError(f"data.name: torchvision has no data set {class_name!r}: {nearest(class_name, known)}")
    constructor = getattr(datasets, class_name)
    _check_arguments(constructor, config.name)
    dataset = _construct_part(constructor, config, part, fixed)
    labels = _labels_of(dataset, config.name)
    return TorchvisionSource(dataset, labels, _class_names_of(dataset, labels), f"{class_name}/{part}")


def _check_arguments(constructor: Any, name: str) -> None:
    """A set that cannot be opened with its folder alone is refused."""
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    named = [item for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]
    needed = [item.name for item in named if item.default is item.empty and item.name not in ("train", "split")]
    if needed:
        rule = f"it needs {', '.join(needed)} besides its folder; arrange its images as data.name 'imagefolder'"
        raise ValueError(f"data.name: {name!r} is not valid: {rule}")


def _construct_part(constructor: Any, config: DataConfig, part: Part, fixed: dict[str, str]) -> Any:
    parameters = inspect.signature(constructor).parameters
    if "train" in parameters:
        return _construct(constructor, config, {"train": part == "train", **fixed})
    if "split" not in parameters:
        rule = "this torchvision set is not divided into train and test; arrange it as data.name 'imagefolder'"
        raise ValueError(f"data.name: {config.name!r} is not valid: {rule}")
    for split in ("train", "trainval") if part == "train" else ("test", "val", "valid"):
        try:
            return _construct(constructor, config, {"split": split, **fixed})
        except ValueError as error:
            if "Unknown value" not in str(error):
                raise
    raise ValueError(f"data.name: {config.name!r} is not valid: this torchvision set has no {part} split")


def _construct(constructor: Any, config: DataConfig, arguments: dict[str, Any]) -> Any:
    try:
        return constructor(config.root, **arguments)
    except (RuntimeError, FileNotFoundError) as error:
        reason = str(error).split("\n")[0]
    can_download = "download" in inspect.signature(constructor).parameters
    if not config.download or not can_download:
        how = "pass --data.download true to fetch it" if can_download else "torchvision cannot download this set"
        raise ValueError(
            f"data.root: {config.name} is not in {str(Path(config.root).absolute())!r} ({reason}): {how}, "
            "or point data.root at the folder that holds it"
        )
    try:
        return constructor(config.root, download=True, **arguments)
    except (RuntimeError, OSError) as error:
        raise OSError(f"data.download: {config.name} could not be fetched: {error}") from error


def _labels_of(dataset: Any, name: str) -> Tensor:
    """The class numbers, from where torchvision's sets keep them; else from the samples, one by one."""
    values: Any = None
    for attribute in ("targets", "labels", "_labels"):
        if values is None:
            values = getattr(dataset, attribute, None)
    for attribute in ("samples", "_samples"):
        if values is None and hasattr(dataset, attribute):
            values = [sample[1] for sample in getattr(dataset, attribute)]
    if values is None:
        values = [dataset[index][1] for index in range(len(dataset))]
    labels = _as_integers(values)
    if labels is None or labels.shape != (len(dataset),) or not len(labels) or int(labels.min()) < 0:
        raise ValueError(f"data.name: {name!r} is not valid: its samples are not (image, class number) pairs")
    return labels


def _as_integers(values: Any) -> Tensor | None:
    try:
        labels = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        return None
    return None if labels.is_floating_point() else labels.to(torch.int64)


def _class_names_of(dataset: Any, labels: Tensor) -> list[str]:
    classes = getattr(dataset, "classes", None)
    if not classes:
        return [str(number) for number in range(int(labels.max()) + 1)]
    return [name if isinstance(name, str) else str(name[0]) for name in classes]
