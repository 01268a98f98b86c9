"""Reading and writing files of named tensors: safetensors, torch files (`weights_only`) and numpy's `.npz`.

A file that contains code is refused.
"""

from __future__ import annotations

import pickle
import struct
import warnings
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeGuard

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from vit.config import check, check_arguments, check_no_pipe
from vit.runs import replace_atomically, write_safetensors

SUFFIXES = (".safetensors", ".pth", ".pt", ".th", ".bin", ".npz")
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "teacher", "student")
"""Keys of a training checkpoint's weights, in order of preference: the moving average before the raw weights, as in
timm's loader, and DINO's teacher before the student."""
PREFIXES = ("module.", "_orig_mod.", "model.", "timm_model.")
"""Prefixes that DistributedDataParallel, `torch.compile`, Lightning and transformers' wrapper of timm add to names."""
REGISTERS = "register_tokens"
"""How a tensor's name ends that may have no numbers."""
_DAMAGE = (
    *(SafetensorError, zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, RuntimeError, ValueError),
    *(LookupError, TypeError, AttributeError, AssertionError, ArithmeticError, MemoryError, RecursionError),
    *(NotImplementedError, TokenError),  # the second of numpy's header
)
"""Exceptions that torch, numpy and safetensors raise for damaged files."""


@dataclass(frozen=True)
class TensorFile:
    """The tensors of a file."""

    tensors: dict[str, Tensor]
    selection: str = ""
    """Which of several sets of weights these are, and which were ignored; empty: there is one."""
    prefix: str = ""
    """One of `PREFIXES`, or several joined, that was removed from every name."""

    @property
    def note(self) -> str:
        """The choices and changes made in reading, for the report."""
        removed = f"prefix {self.prefix} removed from every name" if self.prefix else ""
        return ", ".join(filter(None, (self.selection, removed)))


class _Refusal(ValueError):
    """An error raised by this module, as opposed to a library's error for a damaged file."""


@check_arguments
def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file with one set of weights; otherwise as `read_file`. ValueError for several sets."""
    file = read_file(Path(path))
    if file.selection:
        raise ValueError(
            f"model.pretrained: {path} holds several sets of weights ({file.selection}); give a file of one"
        )
    return file.tensors


def read_file(path: Path) -> TensorFile:
    """The tensors of a file with one of `SUFFIXES`, their names without the prefixes of wrappers.

    ValueError, naming the file, for another suffix, a damaged file and one that holds more than tensors.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"model.pretrained: {str(path)!r} is not a {', '.join(SUFFIXES)} file, nor a run folder")
    check_no_pipe("model.pretrained", path)
    start = _first_bytes(path)
    try:
        if path.suffix == ".safetensors":
            file = TensorFile(load_file(path))
        else:
            if start == b"PK":
                _check_archive(path)
            file = TensorFile(_read_npz(path)) if path.suffix == ".npz" else _read_torch(path, start)
        _check_plain(file.tensors, path)
        return file if path.suffix == ".npz" else _without_prefix(file)
    except _Refusal:
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"model.pretrained: {path} holds more than tensors (a pickle may run code); refused"
        ) from error
    except _DAMAGE as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"model.pretrained: {path} is damaged: {why}") from error


@check_arguments
def write_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of the kind that its suffix, one of `SUFFIXES`, says; an earlier one is replaced in one step.

    ValueError for another suffix, a sparse tensor and, in an `.npz`, number formats that numpy lacks, as bfloat16.
    """
    path = Path(path).resolve()  # of a link the file that it names is replaced
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--output: {str(path)!r} is not valid: its suffix must be one of {', '.join(SUFFIXES)}")
    plain = {name: _plain(name, tensor, path) for name, tensor in tensors.items()}
    with replace_atomically(path) as unfinished:
        if path.suffix == ".safetensors":
            write_safetensors(unfinished, _unshared(plain))
        elif path.suffix == ".npz":
            _write_npz(unfinished, plain)
        else:
            torch.save(plain, unfinished)


def _plain(name: str, tensor: Tensor, path: Path) -> Tensor:
    """The tensor alone, on the CPU: a view would bring all of its storage into a torch file. ValueError for a sparse
    one, and for a number format that the file cannot hold.
    """
    check(tensor.layout == torch.strided, "--output", str(path), f"{name} is sparse; weights are plain arrays")
    plain = tensor.detach().cpu().contiguous()
    try:
        if path.suffix == ".npz":
            plain.numpy()
    except TypeError as error:
        kind = str(plain.dtype).removeprefix("torch.")
        rule = f"{name} is {kind}, which numpy lacks; convert it to float32"
        raise ValueError(f"--output: {str(path)!r} is not valid: {rule}") from error
    return plain.clone() if plain.untyped_storage().nbytes() > plain.numel() * plain.itemsize else plain


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with a copy of each that shares its numbers with an earlier one, which safetensors refuses."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        result[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return result


def _write_npz(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write what `numpy.savez` writes, which takes no tensor named `file`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, tensor.numpy(), allow_pickle=False)


def _check_plain(tensors: Mapping[Any, Tensor], path: Path) -> None:
    """ValueError unless every name is a text and every tensor an array of numbers that the file holds."""
    if not tensors:
        raise _Refusal(f"model.pretrained: {path} holds no tensors")
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise _Refusal(f"model.pretrained: {path}: the name {str(name)[:60]} is no text ({type(name).__name__})")
        if tensor.is_meta or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            kind = "without numbers" if tensor.is_meta else "quantized" if tensor.is_quantized else "sparse"
            raise _Refusal(f"model.pretrained: {path}: {name} is {kind}; weights are plain arrays")
        if not tensor.numel() and not name.endswith(REGISTERS):  # a model of transformers without them has the tensor
            raise _Refusal(f"model.pretrained: {path}: {name} has the shape {tuple(tensor.shape)}, so no numbers")
        # a view that repeats its numbers may be larger than any memory
        if tensor.numel() * tensor.itemsize > max(tensor.untyped_storage().nbytes(), 1):
            raise _Refusal(f"model.pretrained: {path}: {name} of the shape {tuple(tensor.shape)} repeats its numbers")


def _without_prefix(file: TensorFile) -> TensorFile:
    """The file without the prefixes that all of its names share."""
    tensors, removed = file.tensors, ""
    while prefix := next((each for each in PREFIXES if tensors and all(key.startswith(each) for key in tensors)), ""):
        tensors, removed = {key.removeprefix(prefix): value for key, value in tensors.items()}, removed + prefix
    return TensorFile(tensors, file.selection, removed)


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(2)
    except FileNotFoundError as error:
        raise ValueError(f"model.pretrained: there is no file {str(path)!r}") from error
    except OSError as error:
        raise ValueError(f"model.pretrained: {path} cannot be read: {error.strerror}") from error


def _check_archive(path: Path) -> None:
    """Verify the checksums of a zip archive, which torch does not, and that it contains no program."""
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
        if bad is not None:
            raise zipfile.BadZipFile(f"the checksum of {bad} in it is wrong")
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):  # such as OpenAI's own CLIP files
            raise _Refusal(f"model.pretrained: {path} is a TorchScript program, not tensors; refused")


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as stream:  # numpy does not close a file that it fails to read
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise _Refusal(f"model.pretrained: {path} holds one array without a name, not an .npz archive")
            arrays = {name: archive[name] for name in archive.files}
    except ValueError as error:
        if "pickle" in str(error).lower():  # numpy's message for an array of Python objects, and for a pickle
            raise _Refusal(
                f"model.pretrained: {path} holds more than arrays (a pickle may run code), or is no .npz file; refused"
            ) from error
        raise
    text = next((name for name, array in arrays.items() if not isinstance(array, np.ndarray)), None)
    if text is not None:
        raise _Refusal(f"model.pretrained: {path}: {text} in it is not an array")
    foreign = [name for name, array in arrays.items() if array.dtype.kind not in "fiub"]
    if foreign:
        kind = arrays[foreign[0]].dtype
        raise _Refusal(f"model.pretrained: {path}: {foreign[0]} is of the type {kind}, which torch does not have")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _read_torch(path: Path, start: bytes) -> TensorFile:
    # neither a zip archive nor a pickle as before torch 1.6: torch would call a text file a pickle with code
    if start != b"PK" and start[:1] != pickle.PROTO:
        raise _Refusal(f"model.pretrained: {path} is not a readable torch file")
    # Facebook's checkpoints hold their command's arguments; torch warns of formats that are old or rare
    with torch.serialization.safe_globals([Namespace]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        content = torch.load(path, map_location="cpu", weights_only=True)
    if _are_tensors(content):
        return TensorFile(content)
    items = content.items() if isinstance(content, dict) else ()
    sets = {key: value for key, value in items if isinstance(value, dict) and value}
    key = next((key for key in WRAPPERS if _are_tensors(sets.get(key))), None)
    if key is None:
        raise _Refusal(f"model.pretrained: {path} does not hold a dictionary of tensors")
    others = [str(other) for other in sets if other != key and (other in WRAPPERS or _are_tensors(sets[other]))]
    return TensorFile(sets[key], f"{key} used, {', '.join(others)} ignored" if others else "")


def _are_tensors(content: object) -> TypeGuard[dict[str, Tensor]]:
    return isinstance(content, dict) and all(isinstance(value, Tensor) for value in content.values())
