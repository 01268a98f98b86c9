"""Weight files that hold something else: pickles, numpy's archives, and what is no file."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.faults.malformed.trials import Case
from tests.faults.malformed.weights import named_as, npz_bytes, predict, resnet, torch_bytes, with_image

# ------------------------------------------------------------------ pickles


class Runs:
    """A pickle of this would write a file as it is read."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, ...]]:
        return os.system, ("touch pwned",)


class Subclass(Tensor):
    pass


def _program() -> bytes:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file)
    return file.getvalue()


def _wrong_checksum() -> bytes:
    content = bytearray(torch_bytes(resnet()))
    content[len(content) // 2] ^= 255
    return bytes(content)


def _zip(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def _with(**others: object) -> dict[Any, Any]:
    return {**resnet(), **others}


PICKLES: dict[str, Callable[[], bytes]] = {
    "code": lambda: pickle.dumps(Runs()),
    "code in torch's archive": lambda: torch_bytes({"a": Runs()}),
    "code beside weights": lambda: torch_bytes(_with(args=Runs())),
    "code in protocol 0": lambda: pickle.dumps(Runs(), protocol=0),
    "code in protocol 5": lambda: pickle.dumps(Runs(), protocol=5),
    "code in torch's old format": lambda: torch_bytes({"a": Runs()}, _use_new_zipfile_serialization=False),
    "a whole module": lambda: torch_bytes(torch.nn.Linear(2, 2)),
    "a TorchScript program": _program,
    "a list": lambda: torch_bytes([torch.zeros(2)]),
    "a tensor": lambda: torch_bytes(torch.zeros(2)),
    "a number": lambda: torch_bytes(1),
    "None": lambda: torch_bytes(None),
    "an empty dictionary": lambda: torch_bytes({}),
    "an empty set of weights": lambda: torch_bytes({"state_dict": {}}),
    "a dictionary of numbers": lambda: torch_bytes({"epoch": 3}),
    "dictionaries to the depth of 200": lambda: torch_bytes(_nested(200)),
    "integer names": lambda: torch_bytes(dict(enumerate(resnet().values()))),
    "names that are tuples": lambda: torch_bytes({(name, 0): tensor for name, tensor in resnet().items()}),
    "names that are bytes": lambda: torch_bytes({name.encode(): tensor for name, tensor in resnet().items()}),
    "one integer name": lambda: torch_bytes(resnet() | {7: torch.zeros(2)}),
    "integer names in a set": lambda: torch_bytes({"state_dict": {0: torch.zeros(2)}, 1: 2}),
    "a name that is None": lambda: torch_bytes({None: torch.zeros(2)}),
    "a value that is None": lambda: torch_bytes(_with(**{"fc.weight": None})),
    "a value that is a list": lambda: torch_bytes(_with(**{"fc.weight": [1.0, 2.0]})),
    "a value that is a float": lambda: torch_bytes(_with(**{"fc.weight": 1.0})),
    "a sparse tensor": lambda: torch_bytes(_with(**{"fc.weight": resnet()["fc.weight"].to_sparse()})),
    "a sparse tensor by rows": lambda: torch_bytes(_with(**{"fc.weight": resnet()["fc.weight"].to_sparse_csr()})),
    "all sparse": lambda: torch_bytes({name: tensor.to_sparse() for name, tensor in resnet().items() if tensor.dim()}),
    "a meta tensor": lambda: torch_bytes(_with(**{"fc.weight": torch.zeros(3, 16, device="meta")})),
    "all meta": lambda: torch_bytes({name: tensor.to("meta") for name, tensor in resnet().items()}),
    "a quantized tensor": lambda: torch_bytes(
        _with(**{"fc.weight": torch.quantize_per_tensor(resnet()["fc.weight"], 0.1, 0, torch.qint8)})
    ),
    "a complex tensor": lambda: torch_bytes(_with(**{"fc.weight": resnet()["fc.weight"].to(torch.complex64)})),
    "a view of 10^12 zeros": lambda: torch_bytes(_with(extra=torch.zeros(1).expand(10**6, 10**6))),
    "a weight that is one number repeated": lambda: torch_bytes(_with(**{"fc.weight": torch.zeros(1).expand(3, 16)})),
    "a subclass of tensors": lambda: torch_bytes({"a": torch.zeros(2).as_subclass(Subclass)}),
    "a tensor more": lambda: torch_bytes(_with(extra=torch.zeros(2))),
    "another model's": lambda: torch_bytes({"encoder.weight": torch.zeros(2)}),
    "a negative variance": lambda: torch_bytes(_with(**{"bn1.running_var": -torch.ones(4)})),
    "a wrong checksum": _wrong_checksum,
    "cut in half": lambda: torch_bytes(resnet())[:20_000],
    "cut in half, old format": lambda: torch_bytes(resnet(), _use_new_zipfile_serialization=False)[:20_000],
    "an empty archive": lambda: _zip({}),
    "an archive of texts": lambda: _zip({"a.txt": b"text"}),
    "an archive with a pickle of nothing": lambda: _zip({"archive/data.pkl": b"", "archive/version": b"3"}),
    "an archive without its tensors": lambda: _zip(
        {"archive/version": b"3\n", "archive/data.pkl": _member(torch_bytes(resnet()), "data.pkl")}
    ),
    "an archive that unpacks to 300 MB": lambda: _zip({"archive/data.pkl": bytes(300 * 2**20)}, zipfile.ZIP_DEFLATED),
    "a text": lambda: b"weights",
    "nothing": lambda: b"",
    "the first byte of a pickle": lambda: b"\x80",
    "a pickle cut off": lambda: pickle.dumps({"a": 1})[:-3],
    "zeros": lambda: bytes(1000),
    "a tar archive": lambda: b"archive/" + bytes(504),
}
PICKLES_TAKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "an ordered dictionary": (lambda: torch_bytes(OrderedDict(resnet())), "torch writes it so"),
    "parameters": (
        lambda: torch_bytes(
            {name: torch.nn.Parameter(value, value.is_floating_point() and False) for name, value in resnet().items()}
        ),
        "a parameter is a tensor",
    ),
    "torch's old format": (lambda: torch_bytes(resnet(), _use_new_zipfile_serialization=False), "before torch 1.6"),
    "in a training checkpoint": (lambda: torch_bytes({"state_dict": resnet(), "epoch": 3}), "a wrapper that is known"),
    "transposed": (
        lambda: torch_bytes(_with(**{"fc.weight": resnet()["fc.weight"].t().contiguous().t()})),
        "the numbers are the same in another order",
    ),
}


def _nested(depth: int) -> object:
    return {"a": _nested(depth - 1)} if depth else torch.zeros(1)


def _member(archive: bytes, name: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return next(opened.read(entry) for entry in opened.namelist() if entry.endswith(name))


# ------------------------------------------------------------------ numpy's archives


def _npy(header: str, data: bytes = bytes(16), magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    text = header.encode().ljust(118) + b"\n"
    return magic + struct.pack("<H", len(text)) + text + data


def _header(descr: str = "'<f4'", shape: str = "(2, 2)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def _google(**others: Any) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in named_as("npz").items()} | others


def _single_npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "of nothing": lambda: npz_bytes({}),
    "of an empty array": lambda: npz_bytes({"a": np.zeros(0)}),
    "of a scalar": lambda: npz_bytes({"a": np.float32(1)}),
    "of objects": lambda: npz_bytes(_google(cls=np.array([{}, None], dtype=object))),
    "of texts": lambda: npz_bytes(_google(cls=np.array(["a"]))),
    "of times": lambda: npz_bytes(_google(cls=np.array(["2020-01-01"], dtype="M8[s]"))),
    "of records": lambda: npz_bytes(_google(cls=np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]))),
    "of complex numbers": lambda: npz_bytes(_google(cls=np.zeros((1, 1, 32), dtype=np.complex64))),
    "of 80-bit numbers": lambda: npz_bytes(_google(cls=np.zeros((1, 1, 32), dtype=np.longdouble))),
    "of unsigned 64-bit numbers": lambda: npz_bytes(_google(cls=np.zeros((1, 1, 32), dtype=np.uint64))),
    "of one array more": lambda: npz_bytes(_google(extra=np.zeros(2, dtype=np.float32))),
    "that is a picture": lambda: b"\x89PNG\r\n\x1a\n",
    "that is a text": lambda: b"text",
    "that is empty": lambda: b"",
    "that is a pickle": lambda: pickle.dumps({"a": 1}),
    "that is one array": _single_npy,
    "of texts in files": lambda: _zip({"a.txt": b"a", "b.npy": b"b"}),
    "of a cut array": lambda: _zip({"a.npy": _npy(_header())[:-3]}),
    "of a header without data": lambda: _zip({"a.npy": _npy(_header(), b"")}),
    "of a header cut off": lambda: _zip({"a.npy": b"\x93NUMPY\x01\x00\xff\xff{"}),
    "of another version": lambda: _zip({"a.npy": _npy(_header(), magic=b"\x93NUMPY\x09\x00")}),
    "of a header that is code": lambda: _zip({"a.npy": _npy("__import__('os').system('touch pwned')")}),
    "of a header that is a list": lambda: _zip({"a.npy": _npy("[1, 2]")}),
    "of a shape of 10^18": lambda: _zip({"a.npy": _npy(_header(shape="(1000000000, 1000000000)"))}),
    "of a shape of 10^11": lambda: _zip({"a.npy": _npy(_header(shape="(100000000000,)"))}),
    "of a negative shape": lambda: _zip({"a.npy": _npy(_header(shape="(-2, -2)"))}),
    "of a shape that is a text": lambda: _zip({"a.npy": _npy(_header(shape="'ab'"))}),
    "of a type that is none": lambda: _zip({"a.npy": _npy(_header(descr="'<q9'"))}),
    "of a type that is a number": lambda: _zip({"a.npy": _npy(_header(descr="3"))}),
    "of a deep header": lambda: _zip({"a.npy": _npy("(" * 90)}),
    "that unpacks to 300 MB": lambda: _zip(
        {"a.npy": _npy(_header(shape="(78643200,)"), bytes(300 * 2**20))}, zipfile.ZIP_DEFLATED
    ),
    "cut in half": lambda: npz_bytes(_google())[:5000],
}
ARCHIVES_TAKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "of float64": (lambda: npz_bytes({k: v.astype(np.float64) for k, v in _google().items()}), "float32 holds it"),
    "by columns": (lambda: npz_bytes({k: np.asfortranarray(v) for k, v in _google().items()}), "the same numbers"),
    "unchanged": (lambda: npz_bytes(_google()), "it is whole"),
}

# ------------------------------------------------------------------ what is no file


def _to_itself(folder: Path) -> None:
    (folder / "a.pth").symlink_to(folder / "a.pth")


def _socket(folder: Path) -> None:
    os.mknod(folder / "a.pth", 0o140600)


def _pipe(name: str, folder: Path) -> None:
    os.mkfifo(folder / name)


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    **{f"a pipe as {name}": (partial(_pipe, name), name) for name in ("a.pth", "a.safetensors", "a.npz")},
    "a pipe without an ending": (lambda folder: os.mkfifo(folder / "a"), "a"),
    "a socket": (_socket, "a.pth"),
    "a link to itself": (_to_itself, "a.pth"),
    "a link to nothing": (lambda folder: (folder / "a.pth").symlink_to(folder / "no"), "a.pth"),
    "a link to endless zeros": (lambda folder: (folder / "a.pth").symlink_to("/dev/zero"), "a.pth"),
    "a link to nothing at all": (lambda folder: (folder / "a.safetensors").symlink_to("/dev/null"), "a.safetensors"),
    "a folder as a.pth": (lambda folder: (folder / "a.pth").mkdir(), "a.pth"),
    "no file": (lambda folder: None, "a.pth"),  # noqa: ARG005
    "a name of 300 letters": (lambda folder: None, "a" * 300 + ".pth"),  # noqa: ARG005
    "a name with a zero byte": (lambda folder: None, "a\0.pth"),  # noqa: ARG005
    "another ending": (lambda folder: (folder / "a.h5").write_bytes(b"x"), "a.h5"),
    "an image": (lambda folder: None, "image.png"),  # noqa: ARG005
    "an empty name": (lambda folder: None, ""),  # noqa: ARG005
}


def _made(file: str, make: Callable[[], bytes]) -> Callable[[Path], object]:
    return with_image(lambda folder: (folder / file).write_bytes(make()))


def cases() -> list[Case]:
    found = []
    for kind, table, file in (("pickle", PICKLES, "a.pth"), ("npz", ARCHIVES, "a.npz")):
        found += [Case(f"{kind}: {name}", _made(file, make), predict(file)) for name, make in table.items()]
    for kind, whole, file in (("pickle", PICKLES_TAKEN, "a.pth"), ("npz", ARCHIVES_TAKEN, "a.npz")):
        found += [Case(f"{kind}: {name}", _made(file, make), predict(file), why) for name, (make, why) in whole.items()]
    found += [Case(f"place: {name}", with_image(write), predict(file)) for name, (write, file) in PLACES.items()]
    return found
