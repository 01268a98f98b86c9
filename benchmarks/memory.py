"""Peak memory of whole commands: on what is large, with the bound of each; and with freed memory kept and returned.

Every command runs in a process of its own, on one thread. Speeds are the machine's of that hour; peaks are not.
"""

from __future__ import annotations

import gzip
import io
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.timing import ProgressFn
from benchmarks.whole_process import Measured, run_command
from vit.processor import machine

CONVENTIONS = {
    "peak": "largest resident memory of the process, MiB (VmHWM), imports included; one thread, no workers",
    "bound": "MiB that the command stays below on any machine; a slow test runs it and compares",
    "kept": "freed blocks stay with the process (glibc's mallopt: no mmap for large blocks, no trimming)",
    "returned": "glibc's own rules: a large freed block goes back to the system",
    "seconds": "wall time of the process; other programs ran beside it, so only turns beside each other compare",
    "commands": "as typed after `vit`, in a folder with the inputs of `benchmarks/memory.py`",
}
PHOTOGRAPH, FILES, LINE = 12_000, 100_000, 1_000_000
"""Pixels of a side, files in a folder, characters of a line."""
_TINY = "--model.image_size 32 --model.patch_size 8 --model.width 32 --model.depth 2 --model.num_heads 2"
_TEXT = "train --config text/multi30k_transformer --data.test_parts [test] --model.depth 1 --train.epochs 1"


@dataclass(frozen=True, kw_only=True)
class Large:
    """A command on something large."""

    title: str
    command: str
    bound: int
    prepare: Callable[[Path], None]
    exit_code: int = 0
    rule: str
    """The quantities that its memory grows with."""


@dataclass(frozen=True)
class Repeated:
    """A command whose blocks of many sizes are freed and asked for again."""

    title: str
    command: str
    prepare: Callable[[Path], None] = lambda _: None


# ------------------------------------------------------------------ inputs


def write_photograph(folder: Path, *, side: int = PHOTOGRAPH, orientation: int = 1) -> None:
    """A square JPEG, `photograph.jpg`, with a slope of brightness; `orientation` as in EXIF."""
    slope = np.linspace(0, 255, side).astype(np.uint8)
    image = Image.merge("RGB", [Image.fromarray(np.tile(slope, (side, 1)))] * 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(folder / "photograph.jpg", quality=80, exif=exif)


def write_files(folder: Path, *, count: int = FILES) -> None:
    """`many/train` and, with a tenth of them, `many/val`: small JPEG files in ten classes."""
    draw = np.random.default_rng(0)
    contents = []
    for _ in range(64):
        stream = io.BytesIO()
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(stream, "JPEG")
        contents.append(stream.getvalue())
    for part, share in (("train", 0.9), ("val", 0.1)):
        for label in range(10):
            place = folder / "many" / part / f"class{label}"
            place.mkdir(parents=True)
            for number in range(round(count * share / 10)):
                (place / f"image_{number:06d}.jpg").write_bytes(contents[(7 * number + label) % len(contents)])


def write_text(folder: Path, *, part: str = "train", longest: int = LINE) -> None:
    """`text`: sentence pairs of which one, in `part`, has `longest` characters a side."""
    words = ["ein", "mann", "haus", "hund", "rot", "gross", "park", "im", "und", "die"]
    draw = random.Random(0)
    (folder / "text").mkdir()
    for name, count in (("train", 400), ("val", 40), ("test", 40)):
        for language in ("de", "en"):
            lines = [" ".join(draw.choices(words, k=draw.randint(3, 12))) for _ in range(count)]
            if name == part:
                lines[7] = (" ".join(words) + " ") * (longest // 40 + 1)
                lines[7] = lines[7][:longest]
            (folder / "text" / f"{name}.{language}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))


def _nothing(_: Path) -> None:
    """The command needs no input."""


# ------------------------------------------------------------------ commands

LARGE: dict[str, Large] = {
    "photograph": Large(
        title="`vit predict` on a photograph of 144 megapixels",
        command="predict vit_tiny_patch16_224 photograph.jpg",
        bound=1350,
        prepare=write_photograph,
        rule="4 bytes a pixel of the largest image",
    ),
    "turned": Large(
        title="the same, turned by EXIF",
        command="predict vit_tiny_patch16_224 photograph.jpg",
        bound=1900,
        prepare=lambda folder: write_photograph(folder, orientation=6),
        rule="8 bytes a pixel",
    ),
    "files": Large(
        title="`vit plan` of a folder of 100,000 images",
        command=f"plan --config your_images --data many {_TINY}",
        bound=900,
        prepare=write_files,
        rule="1 kB a file",
    ),
    "line": Large(
        title="`vit train` on text with a line of a million characters, which is refused",
        command=f"{_TEXT} --data.root text --output_dir run",
        bound=700,
        prepare=write_text,
        exit_code=2,
        rule="the text itself",
    ),
    "sentence": Large(
        title="`vit train` on text with a test sentence of 10,000 characters",
        command=f"{_TEXT} --data.root text --output_dir run",
        bound=1400,
        prepare=lambda folder: write_text(folder, part="test", longest=10_000),
        rule="tokens of a batch × vocabulary",
    ),
    "analyze": Large(
        title="`vit analyze` of a ViT-L/16 on a photograph: attention maps with rollout and relevance",
        command="analyze vit_large_patch16_224 --images 1 --output_dir analysis --figures attention_overlays",
        bound=3000,
        prepare=_nothing,
        rule="the weights, and what every block computed for the images drawn",
    ),
    "compare": Large(
        title="`vit compare` of a ViT-L/16 and a ViT-B/16 on two images",
        command="compare vit_large_patch16_224 vit_base_patch16_224 --data fake --data.fake_images 8 --output_dir c",
        bound=2800,
        prepare=_nothing,
        rule="the weights of all models, and a batch of images",
    ),
}
"""By name; the bounds are stated in docs/performance.md."""
_GROWING = (
    "--model.image_size 64 --model.patch_size 16 --model.width 64 --model.depth 2 --model.num_heads 2 "
    "--data.name fake --data.fake_images 890 --data.batch_size 16 --data.eval_batch_size 256 "
    "--augment.first_image_size 32 --augment.growing_epochs 30"
)
REPEATED: dict[str, Repeated] = {
    "growing": Repeated(
        "training, 2,000 steps with images that grow from 32 to 64 pixels, and validation at 64",
        f"train --model.name vit {_GROWING} --train.epochs 40 --device cpu --output_dir run",
    ),
    "evaluation": Repeated("`vit eval` of that run at 128 pixels", "eval run --image_size 128 --output_dir evaluated"),
    "prediction": Repeated(
        "`vit predict --output` of a ViT-Ti/16 on 1,000 small images",
        "predict vit_tiny_patch16_224 many/val --output predictions.csv",
        lambda folder: write_files(folder, count=10_000),
    ),
    "analysis": Repeated(
        "`vit analyze` of a ViT-Ti/16 at 1,024 pixels, attention distance and norms",
        "analyze vit_tiny_patch16_224 --image_size 1024 --images 1 --output_dir analysis "
        "--figures attention_distance token_norms",
    ),
}
"""In this order: the second evaluates the run of the first."""


# ------------------------------------------------------------------ measuring


def measure_large(name: str, folder: Path) -> Measured:
    """Run one of `LARGE` in an empty folder. RuntimeError for another exit code than it should have."""
    large = LARGE[name]
    large.prepare(folder)
    return _run(large.command, folder, expected=large.exit_code)


def _run(command: str, folder: Path, expected: int = 0, **options: Any) -> Measured:
    found = run_command(command.split(), folder, **options)
    if found.exit_code != expected:
        raise RuntimeError(f"vit {command}: exit code {found.exit_code} instead of {expected}: {found.said[-300:]}")
    return found


def bench_memory(names: Sequence[str], turns: int, folder: Path, progress: ProgressFn) -> dict[str, Any]:
    """Measure the named commands of `LARGE` once and those of `REPEATED` in turns, with inputs in `folder`."""
    large, repeated = {}, {}
    for name in [name for name in LARGE if name in names]:
        place = folder / name
        place.mkdir(parents=True)
        found = measure_large(name, place)
        facts = {"title": LARGE[name].title, "command": f"vit {LARGE[name].command}", "rule": LARGE[name].rule}
        large[name] = {**facts, "bound": LARGE[name].bound, "peak": found.peak, "seconds": round(found.seconds, 1)}
        progress(f"{name}: {found.peak} MiB of {LARGE[name].bound}, {found.seconds:.1f} s")
    chosen = [name for name in REPEATED if name in names]
    rows: dict[str, dict[str, list[Measured]]] = {name: {"kept": [], "returned": []} for name in chosen}
    for turn in range(turns):
        for allocator in ("kept", "returned"):
            place = folder / f"{allocator}{turn}"
            place.mkdir(parents=True)
            for name in chosen:
                REPEATED[name].prepare(place)
                found = _run(REPEATED[name].command, place, allocator=allocator)
                rows[name][allocator].append(found)
                progress(f"{name}, {allocator}: {found.peak} MiB, {found.seconds:.1f} s")
    for name, ways in rows.items():
        peaks = {way: [each.peak for each in found] for way, found in ways.items()}
        repeated[name] = {
            "title": REPEATED[name].title,
            "command": f"vit {REPEATED[name].command}",
            "peaks": peaks,
            "seconds": {way: [round(each.seconds, 1) for each in found] for way, found in ways.items()},
            "peak_ratio": statistics.fmean(peaks["kept"]) / statistics.fmean(peaks["returned"]),
        }
    return {"large": large, "repeated": repeated, "machine": machine("cpu"), "conventions": CONVENTIONS}
