"""Weight files that are not what they should be: damaged headers, tensors, pickles and archives, and what is no file.

The files are those of small models whose tensors tell the architecture: a ResNet, and a ViT in Google's layout.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from tests.faults.malformed.trials import Case
from vit import create_model
from vit.config import ViTConfig
from vit.models import build_model
from vit.weights.layout import invert_rules
from vit.weights.layouts import get_layout

Tensors = dict[str, Tensor]
_MEAN = ("--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5")
VIT = ViTConfig(image_size=(8, 8), patch_size=(4, 4), width=32, depth=2, num_heads=2, num_classes=3, mlp_ratio=2.0)


def predict(file: str) -> tuple[str, ...]:
    return ("predict", file, "image.png", *_MEAN)


def with_image(write: Callable[[Path], object]) -> Callable[[Path], object]:
    """An image beside what is written."""

    def write_both(folder: Path) -> None:
        Image.new("RGB", (8, 8), (200, 30, 90)).save(folder / "image.png")
        write(folder)

    return write_both


@cache
def resnet() -> Tensors:
    torch.manual_seed(0)
    return {
        name: tensor.clone() for name, tensor in create_model("resnet20", width=4, num_classes=3).state_dict().items()
    }


@cache
def vit() -> Tensors:
    torch.manual_seed(0)
    return build_model(VIT).state_dict()


@cache
def named_as(layout: str) -> Tensors:
    return invert_rules(get_layout(layout), vit(), VIT).tensors


def in_file(name: str, content: bytes) -> Callable[[Path], object]:
    return with_image(lambda folder: (folder / name).write_bytes(content))


def torch_bytes(content: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def npz_bytes(arrays: dict[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays, **options)
    return file.getvalue()


# ------------------------------------------------------------------ headers of safetensors

WHOLE = "a"
"""The tensor whose entry in the header is changed; four float32 numbers."""
ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def safetensors_bytes(header: object, data: bytes = bytes(16), *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


HEADERS: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\0",
    "seven bytes": bytes(7),
    "a length alone": bytes(8),
    "a length of 0 and data": bytes(24),
    "a length beyond the end": safetensors_bytes({WHOLE: ENTRY}, length=10**6),
    "a length of 100 GB": safetensors_bytes({WHOLE: ENTRY}, length=10**11),
    "the greatest length": safetensors_bytes({WHOLE: ENTRY}, length=2**64 - 1),
    "a length of a bit more": safetensors_bytes({WHOLE: ENTRY}, length=2**63),
    "a length too small": safetensors_bytes({WHOLE: ENTRY}, length=10),
    "no JSON": safetensors_bytes(b"{a: 1}"),
    "JSON cut off": safetensors_bytes(json.dumps({WHOLE: ENTRY}).encode()[:-2]),
    "a list": safetensors_bytes([]),
    "null": safetensors_bytes(None),
    "a number": safetensors_bytes(1),
    "a text": safetensors_bytes("a"),
    "an empty object": safetensors_bytes({}, b""),
    "an empty object and data": safetensors_bytes({}),
    "a byte order mark": safetensors_bytes(b"\xef\xbb\xbf" + json.dumps({WHOLE: ENTRY}).encode()),
    "UTF-16": safetensors_bytes(json.dumps({WHOLE: ENTRY}).encode("utf-16")),
    "invalid UTF-8": safetensors_bytes(b'{"\xff\xfe": 1}'),
    "a hundred thousand brackets": safetensors_bytes(b"[" * 100_000),
    "a hundred thousand braces": safetensors_bytes(b'{"a":' * 100_000),
    "garbage behind": safetensors_bytes(json.dumps({WHOLE: ENTRY}).encode() + b"garbage"),
    "zeros behind": safetensors_bytes(json.dumps({WHOLE: ENTRY}).encode() + bytes(8)),
    "NaN": safetensors_bytes(b'{"a": NaN}'),
    "a name twice": safetensors_bytes(b'{"a":%s,"a":%s}' % ((json.dumps(ENTRY).encode(),) * 2)),
    "metadata alone": safetensors_bytes({"__metadata__": {"format": "pt"}}, b""),
    "metadata as a list": safetensors_bytes({"__metadata__": [1], WHOLE: ENTRY}),
    "metadata of numbers": safetensors_bytes({"__metadata__": {"a": 1}, WHOLE: ENTRY}),
    "data cut off": safetensors_bytes({WHOLE: ENTRY}, bytes(15)),
    "no data": safetensors_bytes({WHOLE: ENTRY}, b""),
    "data to spare": safetensors_bytes({WHOLE: ENTRY}, bytes(17)),
    "an empty name": safetensors_bytes({"": ENTRY}),
    "a name with a line break": safetensors_bytes({"a\nb\rc\u2028d": ENTRY}),
    "a name of escapes": safetensors_bytes({"\x1b[31ma\x00b": ENTRY}),
    "a name of a million letters": safetensors_bytes({"a" * 10**6: ENTRY}),
    "overlapping": safetensors_bytes({"a": ENTRY, "b": ENTRY}),
    "a hole": safetensors_bytes({"a": ENTRY, "b": ENTRY | {"data_offsets": [20, 36]}}, bytes(36)),
    "a hundred thousand tensors": safetensors_bytes(
        {str(n): ENTRY | {"shape": [0], "data_offsets": [0, 0]} for n in range(10**5)}, b""
    ),
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "a zip archive": npz_bytes({"a": np.zeros(3)}),
    "a pickle": torch_bytes({"a": torch.zeros(3)}),
    "HTML, as of a failed download": b"<!DOCTYPE html><html><body>404</body></html>",
    "a pointer of git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n",
}
_KINDS: tuple[object, ...] = ("F99", "", 1, None, [], "f32", "I4", "F4")
ENTRIES: dict[str, object] = {
    "null": None,
    "a list": [],
    "a text": "F32",
    "a number": 1,
    "empty": {},
    **{f"without {key}": {other: ENTRY[other] for other in ENTRY if other != key} for key in ENTRY},
    **{f"dtype {value!r}": ENTRY | {"dtype": value} for value in _KINDS},
    **{
        f"shape {str(value)[:20]}": ENTRY | {"shape": value}
        for value in (
            None,
            4,
            "4",
            [-2, -2],
            [2.0, 2],
            ["2", 2],
            [2],
            [2, 3],
            [10**9, 10**9],
            [10**30],
            [[2, 2]],
            [0, 2],
        )
    },
    "64 dimensions": ENTRY | {"shape": [1] * 64 + [4]},
    **{
        f"offsets {str(value)[:24]}": ENTRY | {"data_offsets": value}
        for value in (
            None,
            [],
            [0],
            [0, 16, 16],
            [16, 0],
            [-16, 0],
            [0, 17],
            [4, 20],
            [0, 10**30],
            [0.0, 16.0],
            ["0", "16"],
        )
    },
}

# ------------------------------------------------------------------ tensors

Damage = Callable[[Tensor], Tensor | None]
DAMAGES: dict[str, Damage] = {
    "missing": lambda tensor: None,  # noqa: ARG005
    "a scalar": lambda tensor: torch.tensor(1.0),  # noqa: ARG005
    "of zero width": lambda tensor: tensor[..., :0],
    "without rows": lambda tensor: tensor[:0],
    "a row short": lambda tensor: tensor[1:],
    "a row more": lambda tensor: torch.cat([tensor, tensor[:1]]),
    "of one dimension": lambda tensor: tensor.reshape(-1) if tensor.dim() > 1 else tensor[None],
    "of nine dimensions": lambda tensor: tensor[(None,) * (9 - tensor.dim())],
    "with NaN": lambda tensor: torch.full_like(tensor, float("nan")),
    "with one infinity": lambda tensor: _with_first(tensor, float("inf")),
    "with one negative infinity": lambda tensor: _with_first(tensor, float("-inf")),
    "beyond float32": lambda tensor: _with_first(tensor.double(), -1e300),
    "of integers": lambda tensor: tensor.long(),
    "of bytes": lambda tensor: tensor.to(torch.uint8),
    "of truths": lambda tensor: tensor > 0,
}
TAKEN: dict[str, Damage] = {
    "float64": lambda tensor: tensor.double(),
    "float16": lambda tensor: tensor.half(),
    "very small": lambda tensor: tensor.double() * 1e-300,
}
RESNET_PLACES = (
    "conv1.weight",
    "bn1.weight",
    "bn1.running_var",
    "layer1.0.conv2.weight",
    "layer3.0.bn2.bias",
    "fc.weight",
)
VIT_PLACES = (
    *("embedding/kernel", "cls", "Transformer/posembed_input/pos_embedding", "head/kernel"),
    *("Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel", "Transformer/encoder_norm/scale"),
    "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel",
)

OTHER_PATCHES = (("embedding/kernel", "a row short"), ("embedding/kernel", "a row more"))


def _with_first(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone()
    changed.view(-1)[0] = value
    return changed


def changed(tensors: Tensors, place: str, damage: Damage) -> Tensors:
    found = damage(tensors[place])
    rest = {name: tensor.contiguous() for name, tensor in tensors.items() if name != place}
    return rest if found is None else rest | {place: found.contiguous()}


def _write_resnet(place: str, damage: Damage, folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(save(changed(resnet(), place, damage)))


def _write_vit(place: str, damage: Damage, folder: Path) -> None:
    arrays = {name: tensor.numpy() for name, tensor in changed(named_as("npz"), place, damage).items()}
    (folder / "a.npz").write_bytes(npz_bytes(arrays))


def tensor_cases() -> list[Case]:
    cases = []
    for place in RESNET_PLACES:
        for name, damage in (DAMAGES | TAKEN).items():
            why = "float32 holds it, to its precision" if name in TAKEN else ""
            write = with_image(partial(_write_resnet, place, damage))
            cases.append(Case(f"ResNet: {place} {name}", write, predict("a.safetensors"), why))
    for place in VIT_PLACES:
        for name, damage in DAMAGES.items():
            # a kernel of other sides is that of a patch which is no square
            why = "patches of 3×4 or 5×4 pixels" if (place, name) in OTHER_PATCHES else ""
            write = with_image(partial(_write_vit, place, damage))
            cases.append(Case(f"Google's ViT: {place} {name}", write, predict("a.npz"), why))
    return cases


def cases() -> list[Case]:
    found = [
        Case(f"safetensors: {name}", in_file("a.safetensors", content), predict("a.safetensors"))
        for name, content in HEADERS.items()
    ]
    for name, entry in ENTRIES.items():
        write = in_file("a.safetensors", safetensors_bytes({WHOLE: entry}))
        found.append(Case(f"safetensors: entry {name}", write, predict("a.safetensors")))
    return found + tensor_cases()
