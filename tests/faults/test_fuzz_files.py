"""A fuzzer over safetensors headers and JPEG bytes: a file is read, or refused in one line; nothing else, and at once.

`VIT_FUZZ=5000 pytest -n0 tests/faults/test_fuzz_files.py` tries more of them.
"""

from __future__ import annotations

import io
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from tests.data.image_folders import picture
from tests.faults.malformed.weights import resnet
from vit.config import Preprocessing
from vit.data.decoding import BrokenImage, read_rgb
from vit.data.preprocessing import resize_and_crop
from vit.hub import open_model

MOST_SECONDS = 10
TRIALS = int(os.environ.get("VIT_FUZZ", "60"))
fuzz = settings(
    max_examples=TRIALS, deadline=MOST_SECONDS * 1000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WHOLE = save(resnet())
LENGTH = struct.unpack("<Q", WHOLE[:8])[0]
HEADER: dict[str, Any] = json.loads(WHOLE[8 : 8 + LENGTH])
DATA = WHOLE[8 + LENGTH :]

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**66), 2**66) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
dtypes = st.sampled_from(["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F4", "I64", "I32", "U8", "BOOL", "C64"])
sizes = st.integers(0, 40) | st.sampled_from([2**31, 2**40, 2**63, 2**64 - 1])
offsets = st.integers(0, len(DATA)) | sizes


@st.composite
def headers(draw: st.DrawFn) -> dict[str, Any]:
    """The header of a ResNet with a few of its entries changed: another type, shape, place or name, or any JSON."""
    header = json.loads(json.dumps(HEADER))
    for name in draw(st.lists(st.sampled_from(sorted(HEADER)), min_size=1, max_size=3, unique=True)):
        change = draw(st.sampled_from(["dtype", "shape", "data_offsets", "name", "key", "whole", "gone"]))
        if change == "dtype":
            header[name]["dtype"] = draw(dtypes)
        elif change == "shape":
            header[name]["shape"] = draw(st.permutations(header[name]["shape"]) | st.lists(sizes, max_size=5))
        elif change == "data_offsets":
            header[name]["data_offsets"] = draw(st.lists(offsets, min_size=1, max_size=3))
        elif change == "name":
            header[draw(st.text(max_size=12))] = header.pop(name)
        elif change == "key":
            header[name][draw(st.sampled_from(["dtype", "shape", "data_offsets"]))] = draw(values)
        elif change == "whole":
            header[name] = draw(values)
        else:
            del header[name]
    return header


@st.composite
def mutated(draw: st.DrawFn, content: bytes, *, head: int) -> bytes:
    """Bytes changed, cut out, put in or doubled, more often among the first `head`."""
    found = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, min(head, len(found))) | st.integers(0, len(found)))
        how = draw(st.sampled_from(["set", "flip", "cut", "insert", "double", "end"]))
        if how == "set":
            found[place : place + 1] = draw(st.binary(min_size=1, max_size=4))
        elif how == "flip" and place < len(found):
            found[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut":
            del found[place : place + draw(st.integers(1, 64))]
        elif how == "insert":
            found[place:place] = draw(st.binary(min_size=1, max_size=16))
        elif how == "double":
            found[place:place] = found[place : place + draw(st.integers(1, 256))]
        elif how == "end":
            del found[max(place, 1) :]
    return bytes(found)


def refusal(opening: Callable[[], object], *errors: type[Exception]) -> str:
    """What an error of these kinds says, in one line; empty: there was none. Any other error gets out."""
    start = time.perf_counter()
    try:
        opening()
        said = ""
    except errors as error:
        said = str(error)
    assert time.perf_counter() - start < MOST_SECONDS
    assert "\n" not in said
    return said


def check_weights(content: bytes, folder: Path) -> None:
    path = folder / "a.safetensors"
    path.write_bytes(content)
    said = refusal(lambda: open_model(path), ValueError)
    assert not said or said.startswith(("model.pretrained: ", "architecture: ", "model."))


@fuzz
@given(header=headers())
def test_headers_of_safetensors(header: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    check_weights(struct.pack("<Q", len(text)) + text + DATA, tmp_path)


@fuzz
@given(content=mutated(WHOLE, head=8 + LENGTH))
def test_bytes_of_safetensors(content: bytes, tmp_path: Path) -> None:
    check_weights(content, tmp_path)


TURNED = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
"""EXIF of orientation 6."""


def _jpeg(**options: Any) -> bytes:
    file = io.BytesIO()
    picture((97, 61), 3).save(file, "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize("progressive", [False, True])
def test_bytes_of_jpeg(progressive: bool, tmp_path: Path) -> None:
    whole = _jpeg(progressive=progressive, exif=TURNED)
    preprocessing = Preprocessing(image_size=(32, 32))

    @fuzz
    @given(content=mutated(whole, head=700))
    def is_decoded_or_broken(content: bytes) -> None:
        path = tmp_path / "a.jpg"
        path.write_bytes(content)
        said = refusal(lambda: resize_and_crop(read_rgb(path, "a.jpg"), preprocessing), BrokenImage)
        assert not said or said.startswith("a.jpg: ")

    is_decoded_or_broken()
