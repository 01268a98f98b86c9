"""What is looked into: a model of any library with its preprocessing, and the images that it looks at.

Images are those of a data set, of a folder, single files or, where nothing is said, the two photographs that come with
scikit-learn. Knows no figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from vit.analysis.attention_profile import AttentionProfile, attention_profile
from vit.config import DataConfig, ModelConfig, Preprocessing, check, nearest
from vit.data.decoding import BrokenImage, read_rgb
from vit.data.images import NAMES, Split, open_test
from vit.data.preprocessing import normalize, resize_and_crop
from vit.data.splits import stratified
from vit.engine import make_accelerator
from vit.evaluation.comparison.contestants import load_contestants, weights_digest
from vit.evaluation.comparison.images import resolve_data
from vit.evaluation.comparison.libraries import LIBRARIES, Head
from vit.hub import load_model
from vit.models import ResNet, list_models
from vit.models.zoo import is_known
from vit.runs import holds_checkpoints
from vit.weights.timm_models import is_timm_vit

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"}
RANDOM_CLASSES = 1000
"""Of a head without trained weights."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageSet:
    """Images as the model's preprocessing makes them."""

    pixels: Tensor
    """uint8 b 3 H W"""
    names: list[str]
    source: str
    """Where they are from, for people."""
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    data: DataConfig | None = None
    """The data set that they are the test images of."""

    @property
    def fingerprint(self) -> str:
        """12 hexadecimal digits of the pixels, the labels and the settings of the data set."""
        digest = sha256(self.pixels.contiguous().numpy().tobytes())
        digest.update(repr((self.labels if self.labels is None else self.labels.tolist(), self.data)).encode())
        return digest.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A model that is looked into, on its device, with images."""

    name: str
    model: nn.Module
    preprocessing: Preprocessing
    images: ImageSet
    class_names: tuple[str, ...] = ()
    """Of its head; empty where unknown."""
    batch_size: int = 16
    against: Subject | None = None
    """Another model with the same images, whose layers are compared."""

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def identity(self) -> str:
        """12 hexadecimal digits of its weights."""
        return weights_digest(self.model)

    @cached_property
    def profile(self) -> AttentionProfile:
        """Of all images; made once."""
        total = math.ceil(len(self.images.names) / self.batch_size)
        return attention_profile(self.model, tqdm(self.batches(), "attention", total, leave=False, disable=None))

    @property
    def knows_the_classes(self) -> bool:
        """Whether its head's classes are the images'."""
        return self.images.labels is not None and self.class_names == self.images.class_names

    def first(self, count: int) -> Tensor:
        """The first images, normalised, on the device."""
        return normalize(self.images.pixels[:count].to(self.device), self.preprocessing)

    def batches(self, count: int | None = None, batch_size: int | None = None) -> Iterator[Tensor]:
        """Normalised images on the device; `count`: the first ones only."""
        for pixels in self.images.pixels[:count].split(batch_size or self.batch_size):
            yield normalize(pixels.to(self.device), self.preprocessing)

    def mixed_batches(self) -> Iterator[Tensor]:
        """All of them in an order that has nothing to do with their classes, the same for every model."""
        order = torch.randperm(len(self.images.names), generator=torch.Generator().manual_seed(0))
        for places in order.split(self.batch_size):
            yield normalize(self.images.pixels[places].to(self.device), self.preprocessing)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A model with what came with it."""

    name: str
    model: nn.Module
    preprocessing: Preprocessing
    class_names: tuple[str, ...]


def find_model(source: str, *, select: str = "best", random_weights: bool = False, seed: int = 0) -> Found:
    """A run, `timm:NAME`, `torchvision:NAME`, `hf:NAME`, or with `random_weights` the name of an architecture.

    ValueError for anything else.
    """
    if source.partition(":")[0] in LIBRARIES or holds_checkpoints(Path(source)):
        head = Head(RANDOM_CLASSES, seed) if random_weights else None
        (found,) = load_contestants([source], select=select, random_head=head)
        return Found(
            name=found.name,
            model=found.model,
            preprocessing=found.preprocessing,
            class_names=tuple(found.class_names),
        )
    if not (is_known(source) or is_timm_vit(source)):
        rule = f"it is no run, no timm:, torchvision: or hf:NAME, and no architecture; {nearest(source, list_models())}"
        raise ValueError(f"model: {source!r} is not valid: {rule}")
    check(random_weights, "model", source, "an architecture has no weights; give --random_weights, or a run")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = load_model(ModelConfig(name=source)).model.eval()
    check(not isinstance(model, ResNet), "model", source, "it has no attention to look at")
    preprocessing = Preprocessing(image_size=model.config.image_size)
    return Found(name=f"{source} (random weights)", model=model, preprocessing=preprocessing, class_names=())


# ------------------------------------------------------------------ images


def find_images(
    places: Sequence[str],
    settings: Sequence[str],
    preprocessing: Preprocessing,
    num_images: int,
    run: str | None = None,
) -> ImageSet:
    """At most `num_images`. `places`: none, a data set's name, a folder, or files; `settings`: of a data set.

    None: the test images of `run`, where there is one, else the two photographs. ValueError for what is neither, and
    for a file that is no image.
    """
    check(num_images > 0, "--images", num_images, "it must be above 0")
    of_run = run is not None and not places
    if of_run or (len(places) == 1 and _is_data_set(places[0])):
        data = resolve_data([run] if run and of_run else [], None if of_run else places[0], settings)
        source = f"{data.name}, test" if of_run else places[0]
        return replace(from_split(open_test(data), preprocessing, num_images, source), data=data)
    rule = "it has an effect only with --data naming a data set"
    check(not settings, settings[0] if settings else "", settings[1:2], rule)
    if not places:
        return _photographs(preprocessing, num_images)
    files = [file for place in places for file in _files(Path(place))]
    spread = torch.linspace(0, len(files) - 1, min(num_images, len(files))).round().long()
    chosen = [files[place] for place in spread.tolist()]
    pixels = torch.stack([resize_and_crop(_read(file), preprocessing) for file in chosen])
    return ImageSet(pixels=pixels, names=[file.name for file in chosen], source=", ".join(places))


def from_split(split: Split, preprocessing: Preprocessing, num_images: int, source: str) -> ImageSet:
    """The pixels of `part_of` a split. ValueError naming an image that cannot be read."""
    indices = part_of(split, num_images).indices
    try:
        places = tqdm(indices.tolist(), "reading", leave=False, disable=None)
        pixels = [resize_and_crop(split.source.read(index), preprocessing) for index in places]
    except BrokenImage as error:
        raise ValueError(f"--data: {error.name} is not a readable image ({error.reason})") from error
    return ImageSet(
        pixels=torch.stack(pixels),
        names=[split.source.name(index) for index in indices.tolist()],
        source=source,
        labels=split.source.labels[indices],
        class_names=tuple(split.source.class_names),
    )


def part_of(split: Split, num_images: int) -> Split:
    """About so many images, classes balanced, always the same ones."""
    if num_images >= len(split):
        return split
    return Split(
        split.source, split.indices[stratified(split.labels, num_images / len(split), seed=0, stream="analysis")]
    )


def _is_data_set(place: str) -> bool:
    return place in NAMES or place.startswith("torchvision:") or (Path(place) / "train").is_dir()


def _photographs(preprocessing: Preprocessing, num_images: int) -> ImageSet:
    from sklearn.datasets import load_sample_images

    found = load_sample_images()
    names = [Path(name).name for name in found.filenames][:num_images]
    pictures = [Image.fromarray(pixels) for pixels in found.images][:num_images]
    pixels = torch.stack([resize_and_crop(picture, preprocessing) for picture in pictures])
    return ImageSet(pixels=pixels, names=names, source="scikit-learn's two photographs")


def _files(place: Path) -> list[Path]:
    if place.is_dir():
        files = sorted(file for file in place.rglob("*") if file.suffix.lower() in SUFFIXES)
        check(bool(files), "--data", str(place), "the folder holds no images")
        return files
    check(place.is_file(), "--data", str(place), f"it is no file, no folder and none of {', '.join(NAMES)}")
    return [place]


def _read(file: Path) -> Image.Image:
    try:
        return read_rgb(file, str(file))
    except BrokenImage as error:
        raise ValueError(f"--data: {error.name} is not a readable image ({error.reason})") from error


# ------------------------------------------------------------------ both


@dataclass(frozen=True, kw_only=True)
class SubjectRequest:
    """Which model, on which images."""

    model: str
    against: str | None = None
    places: Sequence[str] = ()
    """Of the images, as `find_images` takes them."""
    settings: Sequence[str] = ()
    num_images: int = 64
    select: str = "best"
    random_weights: bool = False
    seed: int = 0
    device: str = "auto"


def open_subject(request: SubjectRequest) -> Subject:
    """The model that is asked for, on its device, with its images. ValueError for what is not there."""
    accelerator = make_accelerator(request.device, "fp32")
    if accelerator.num_processes > 1:
        raise ValueError("analyze: figures are drawn by one process; leave out accelerate launch")
    sources = [request.model, *([request.against] if request.against else [])]
    runs = [source for source in sources if holds_checkpoints(Path(source))]
    random = request.random_weights
    check(not random or len(runs) < len(sources), "--random_weights", random, "a run of ours has its own weights")
    check(random or request.seed == 0, "--seed", request.seed, "it has an effect only with --random_weights")
    check(bool(runs) or request.select == "best", "--select", request.select, "it has an effect on runs of ours only")
    run = runs[0] if runs else None
    subjects: list[Subject] = []
    for source in sources:
        found = find_model(source, select=request.select, random_weights=request.random_weights, seed=request.seed)
        images = find_images(request.places, request.settings, found.preprocessing, request.num_images, run)
        model = found.model.to(accelerator.device).eval()
        subjects.append(
            Subject(
                name=found.name,
                model=model,
                preprocessing=found.preprocessing,
                images=images,
                class_names=found.class_names,
            )
        )
    return subjects[0] if len(subjects) == 1 else replace(subjects[0], against=subjects[1])
