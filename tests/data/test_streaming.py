from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.image_folders import make_folder, picture, truncate
from vit.config import DataConfig, Preprocessing
from vit.data import streaming
from vit.data.decoding import BrokenImage, FailedRead
from vit.data.images import Split, open_training
from vit.data.preprocessing import resize_and_crop, to_tensor
from vit.data.sources import ArraySource
from vit.data.streaming import CanvasDecoder, ImageStream, canvas_size, decode_all


def split_of(size: tuple[int, int], count: int = 5) -> Split:
    """Images of (height, width)."""
    pixels = np.zeros((count, *size), np.uint8)
    labels = torch.zeros(count, dtype=torch.int64)
    return Split(ArraySource(pixels, labels, ["a"], [str(n) for n in range(count)]), torch.arange(count))


@pytest.mark.parametrize(
    ("size", "image_size", "expected"),
    [
        ((8, 8), (8, 8), (8, 8)),
        ((32, 32), (48, 48), (32, 32)),
        ((64, 64), (32, 32), (37, 37)),
        ((36, 37), (32, 32), (36, 37)),
        ((160, 288), (160, 288), (160, 288)),
        ((360, 640), (160, 288), (329, 329)),
        ((300, 300), (224, 224), (256, 256)),
    ],
)
def test_canvas_of_images_of_one_size(
    size: tuple[int, int], image_size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert canvas_size(split_of(size), DataConfig(), image_size) == expected


def test_canvas_of_mixed_sizes_and_by_hand(tmp_path: Path) -> None:
    make_folder(tmp_path / "train" / ".." / "train", {"a": 3}, size=(20, 30))
    make_folder(tmp_path / "train", {"b": 3}, size=(30, 20))
    config = DataConfig(name="imagefolder", root=str(tmp_path), test_folder="val")
    train, _ = open_training(config)
    assert canvas_size(train, config, (28, 28)) == (32, 32)
    assert canvas_size(train, DataConfig(canvas_size=50), (28, 28)) == (50, 50)
    assert canvas_size(split_of((8, 8)), DataConfig(canvas_size=50), (8, 8)) == (50, 50)


def test_the_whole_image_is_squashed_and_its_aspect_kept(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", {"a": 2}, size=(60, 30))
    source = open_training(DataConfig(name="imagefolder", root=str(tmp_path), test_folder="val"))[0].source
    decoded = CanvasDecoder(source, (24, 24), "bilinear")[[0, 1]]
    assert decoded.aspects.tolist() == [2.0, 2.0]
    expected = to_tensor(picture((60, 30), 1).resize((24, 24), Image.Resampling.BILINEAR))
    assert torch.equal(decoded.images[1], expected)
    wide = CanvasDecoder(source, (30, 60), "bilinear")[[1]]
    assert wide.aspects.tolist() == [1.0]
    assert torch.equal(wide.images[0], to_tensor(picture((60, 30), 1)))
    assert CanvasDecoder(source, (20, 40), "bilinear")[[1]].aspects.tolist() == [1.0]


def test_large_jpegs_are_shrunk_at_decode_with_nearly_the_same_result(tmp_path: Path) -> None:
    (tmp_path / "train" / "a").mkdir(parents=True)
    for index in range(2):
        picture((640, 410), index).save(tmp_path / "train" / "a" / f"{index}.jpg", quality=95)
    source = open_training(DataConfig(name="imagefolder", root=str(tmp_path), test_folder="val"))[0].source
    decoded = CanvasDecoder(source, (32, 32), "bicubic")[[0]]
    whole = to_tensor(source.read(0).resize((32, 32), Image.Resampling.BICUBIC))
    assert (decoded.images[0].int() - whole.int()).abs().float().mean() < 1.5
    assert abs(float(decoded.aspects[0]) - 640 / 410) < 0.02
    plain = Preprocessing(image_size=(32, 32), crop_fraction=1.0, squash=True, antialias=False)
    without = CanvasDecoder(source, (32, 32), "bicubic", antialias=False)[[0]]
    assert torch.equal(without.images[0], resize_and_crop(source.read(0), plain))


@pytest.fixture
def decoder(tmp_path: Path) -> CanvasDecoder:
    make_folder(tmp_path / "train", {"a": 9, "b": 8}, size=(20, 30))
    truncate(tmp_path / "train" / "b" / "004.png")
    source = open_training(DataConfig(name="imagefolder", root=str(tmp_path), test_folder="val"))[0].source
    return CanvasDecoder(source, (16, 16), "bicubic")


CHUNKS = [[3, 1, 2], [16], [13, 0, 0, 5], [4, 6], [7, 8, 9], [10], [11, 12]]


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_bits_in_the_same_order(decoder: CanvasDecoder, workers: int) -> None:
    here, there = ImageStream(decoder, 0), ImageStream(decoder, workers)
    for _ in range(2):
        for one, other in zip(here.decode(CHUNKS), there.decode(iter(CHUNKS)), strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.aspects, other.aspects)
            assert {place: str(error) for place, error in one.broken.items()} == {
                place: str(error) for place, error in other.broken.items()
            }
    there.close()


def test_a_broken_image_keeps_its_row_and_the_rest_is_decoded(decoder: CanvasDecoder) -> None:
    decoded = decoder[[12, 13, 14]]
    assert list(decoded.broken) == [1]
    assert decoded.broken[1].name == "train/b/004.png"
    assert not decoded.images[1].any()
    assert torch.equal(decoded.images[2], decoder[[14]].images[0])


def test_an_abandoned_pass_does_not_affect_the_next(decoder: CanvasDecoder) -> None:
    stream = ImageStream(decoder, 2)
    left = stream.decode(CHUNKS)
    next(left)
    found = [len(decoded.images) for decoded in stream.decode(CHUNKS[::-1])]
    assert found == [len(chunk) for chunk in CHUNKS[::-1]]
    stream.close()


def test_a_new_pass_ends_the_one_before_it(decoder: CanvasDecoder) -> None:
    stream = ImageStream(decoder, 1)
    left, new = stream.decode(CHUNKS), stream.decode(CHUNKS[::-1])
    next(left)
    found = [len(next(new).images)]
    assert next(left, None) is None
    assert [*found, *(len(decoded.images) for decoded in new)] == [len(chunk) for chunk in CHUNKS[::-1]]
    stream.close()


def test_streaming_leaves_the_global_generator_alone(decoder: CanvasDecoder) -> None:
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    list(ImageStream(decoder, 1).decode(CHUNKS))
    assert torch.equal(torch.get_rng_state(), expected)


def test_decode_all_and_select(decoder: CanvasDecoder) -> None:
    reported: list[BrokenImage | FailedRead] = []
    indices = torch.tensor([14, 13, 2, 0])
    everything = decode_all(decoder, indices, workers=0, report=reported.extend, quiet=True)
    assert [error.name for error in reported] == ["train/b/004.png"]
    chosen = everything.select(torch.tensor([2, 1, 0]))
    expected = decoder[[2, 13, 14]]
    assert torch.equal(chosen.images, expected.images)
    assert torch.equal(chosen.aspects[[0, 2]], expected.aspects[[0, 2]])
    assert list(chosen.broken) == [1]


class HalfSent:
    """A loader whose worker is killed while it sends a chunk: the connection breaks before SIGCHLD arrives."""

    error = ConnectionResetError

    def __init__(self, *_: CanvasDecoder, **__: Any) -> None:
        pass

    def __iter__(self) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        raise self.error
        yield


@pytest.mark.parametrize("error", [ConnectionResetError, EOFError])
def test_a_worker_killed_while_sending_is_named(monkeypatch: pytest.MonkeyPatch, error: type) -> None:
    def told(*_: Any) -> None:
        raise RuntimeError("worker 7 was killed")

    monkeypatch.setattr(streaming, "DataLoader", HalfSent)
    monkeypatch.setattr(HalfSent, "error", error)
    before = signal.signal(signal.SIGALRM, told)
    try:
        with pytest.raises(RuntimeError, match="worker 7"):
            list(ImageStream(CanvasDecoder(split_of((8, 8)).source, (8, 8), "bicubic"), 2).decode([[0]]))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


PROGRAM = """
import os, signal, sys
from vit.config import DataConfig
from vit.data.images import open_training
from vit.data.streaming import CanvasDecoder, ImageStream

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell starts its children deaf to it
    source = open_training(DataConfig(name="fake", fake_images=4096))[0].source
    stream = ImageStream(CanvasDecoder(source, (32, 32), "bicubic"), 2)
    signal.signal(signal.SIGTERM, lambda *_: None)
    chunks = stream.decode([[i] * 16 for i in range(256)])
    next(chunks), next(chunks)  # one of each worker: both are at work
    os.killpg(0, signal.SIGTERM)  # workers must live on
    for _ in range(64):
        next(chunks)
    print("went on", flush=True)
    {ending}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code", "last"),
    [
        ("sys.exit(143)", 143, ""),
        ("os.killpg(0, signal.SIGINT); next(chunks)", -2, "KeyboardInterrupt"),
        ("os.kill(next(iter(__import__('multiprocessing').active_children())).pid, 9); list(chunks)", 1, "was killed"),
    ],
)
def test_workers_ignore_signals_and_the_parent_ends_cleanly(tmp_path: Path, ending: Any, code: Any, last: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).format(ending=ending))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, start_new_session=True, check=False
    )
    assert done.stdout == "went on\n", done.stderr
    assert done.returncode == code
    assert done.stderr.count("Traceback") <= 1 + (code == 1)
    assert last in (done.stderr.strip().split("\n") or [""])[-1]


@pytest.mark.slow
def test_workers_can_be_spawned(decoder: Any) -> None:
    stream = ImageStream(decoder, 1)
    assert stream._loader is not None
    stream._loader.multiprocessing_context = "spawn"
    found = [decoded.images for decoded in stream.decode(CHUNKS)]
    assert all(torch.equal(images, decoder[chunk].images) for images, chunk in zip(found, CHUNKS, strict=True))
    stream.close()
