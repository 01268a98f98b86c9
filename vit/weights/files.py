"""Files of named tensors: read and written. Knows no names and no models.

Reads safetensors, torch files of plain tensors (`weights_only`) and numpy's `.npz`; a file with code in it is refused.
"""

from __future__ import annotations

import pickle
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".npz")
WRAPPERS = ("state_dict", "model", "teacher", "student")
"""Keys under which a training checkpoint keeps the tensors, the first that is there (DINO: the teacher)."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The named tensors of a `.safetensors`, `.pth`, `.pt`, `.bin` or `.npz` file. ValueError, naming it, for any other
    and for one that is damaged or holds more than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".npz":
            return _read_npz(path)
        if path.suffix in SUFFIXES:
            _check_torch_file(path)
            with torch.serialization.safe_globals([Namespace]):  # the arguments that Facebook's checkpoints keep
                return _only_tensors(path, torch.load(path, map_location="cpu", weights_only=True))
    except FileNotFoundError as error:
        raise ValueError(f"model.pretrained: there is no file {str(path)!r}") from error
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"model.pretrained: {path} holds more than tensors (a pickle may run code); refused"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"model.pretrained: {path} is damaged: {' '.join(str(error).split())}") from error
    raise ValueError(f"model.pretrained: {str(path)!r} is not a {', '.join(SUFFIXES)} file, nor a run folder")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Named tensors into a `.safetensors`, `.pth`, `.pt`, `.bin` or `.npz` file. ValueError for another suffix."""
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})  # type: ignore[arg-type]
    elif path.suffix in SUFFIXES:
        torch.save(dict(tensors), path)
    else:
        raise ValueError(f"--output: {str(path)!r} is not valid: its suffix must be one of {', '.join(SUFFIXES)}")


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as stream:  # numpy leaves a file open that it cannot read
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError(f"model.pretrained: {path} holds one array without a name, not an .npz archive")
            arrays = {name: archive[name] for name in archive.files}
    except ValueError as error:
        if "pickle" in str(error).lower():  # numpy's words for an array of Python objects, and for a pickle
            raise ValueError(
                f"model.pretrained: {path} holds more than arrays (a pickle may run code), or is no .npz file; refused"
            ) from error
        raise
    foreign = [name for name, array in arrays.items() if array.dtype.kind not in "fiub"]
    if foreign:
        kind = arrays[foreign[0]].dtype
        raise ValueError(f"model.pretrained: {path}: {foreign[0]} is of the type {kind}, which is no torch type")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _check_torch_file(path: Path) -> None:
    """torch's own complaint about a text file is that of a pickle with code in it."""
    with path.open("rb") as stream:
        start = stream.read(2)
    if start != b"PK" and start[:1] != pickle.PROTO:  # a zip archive, or a pickle as torch wrote them before 1.6
        raise ValueError(f"model.pretrained: {path} is not a readable torch file")
    if start == b"PK":
        with zipfile.ZipFile(path) as archive:
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):  # as OpenAI's own CLIP files
                raise ValueError(f"model.pretrained: {path} is a TorchScript program, not tensors; refused")


def _only_tensors(path: Path, content: object) -> dict[str, Tensor]:
    """A state dictionary, or the one inside a checkpoint's usual key."""
    if isinstance(content, dict):
        for key in WRAPPERS:
            if isinstance(content.get(key), dict):
                content = content[key]
                break
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"model.pretrained: {path} does not hold a dictionary of tensors")
    return content
