"""Files of tensors: what is read, and the one line for what is damaged, foreign or holds code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vit.weights.files import SUFFIXES, read_tensors, write_tensors


class Code:
    """What a hostile pickle looks like."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this ran",))


TENSORS = {"a": torch.arange(3.0)}
WRAPPED: dict[str, Any] = {
    "plain.pth": TENSORS,
    "wrapped.pt": {"state_dict": TENSORS, "epoch": 3},
    "model.bin": {"model": TENSORS},
}


@pytest.mark.parametrize(("name", "content"), WRAPPED.items(), ids=list(WRAPPED))
def test_torch_files_of_plain_tensors_are_read(name: str, content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / name)
    assert_tensors(read_tensors(tmp_path / name))


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    assert_tensors(read_tensors(tmp_path / "a.safetensors"))


def assert_tensors(found: dict[str, Tensor]) -> None:
    assert found.keys() == TENSORS.keys()
    assert torch.equal(found["a"], TENSORS["a"])


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_pickle_with_code_in_it_is_refused(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "weights.pth"
    if how == "torch":
        torch.save({"a": Code()}, path)
    else:
        path.write_bytes(pickle.dumps({"a": Code()}, protocol=2))
    with pytest.raises(ValueError, match=r"weights\.pth holds more than tensors"):
        read_tensors(path)
    assert "this ran" not in capsys.readouterr().out


def test_files_that_are_not_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*absent\.safetensors"):
        read_tensors(tmp_path / "absent.safetensors")
    with pytest.raises(ValueError, match=r"absent\.pth"):
        read_tensors(tmp_path / "absent.pth")
    with pytest.raises(ValueError, match=r"weights\.txt' is not a \.safetensors"):
        read_tensors(tmp_path / "weights.txt")
    save_file(TENSORS, tmp_path / "cut.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "cut.safetensors").read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"cut\.safetensors is damaged"):
        read_tensors(tmp_path / "cut.safetensors")
    torch.save(TENSORS, tmp_path / "cut.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "cut.pth").read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"cut\.pth"):
        read_tensors(tmp_path / "cut.pth")
    for content in (b"", b"<html>not found</html>"):
        (tmp_path / "text.pth").write_bytes(content)
        with pytest.raises(ValueError, match=r"text\.pth is not a readable torch file"):
            read_tensors(tmp_path / "text.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"list\.pth does not hold a dictionary of tensors"):
        read_tensors(tmp_path / "list.pth")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read(suffix: str, tmp_path: Path) -> None:
    write_tensors(tmp_path / f"a{suffix}", TENSORS)
    assert_tensors(read_tensors(tmp_path / f"a{suffix}"))


def test_another_suffix_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--output: .*a\.h5' is not valid: its suffix must be one of \.safetensors"):
        write_tensors(tmp_path / "a.h5", TENSORS)


def npz_bytes(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


WHOLE = npz_bytes(a=np.arange(300.0))
STREAM = io.BytesIO()
np.save(STREAM, np.arange(3.0))
BAD_NPZ: dict[str, tuple[bytes, str]] = {
    "code": (npz_bytes(a=np.array([Code()], dtype=object)), "holds more than arrays"),
    "a pickle": (pickle.dumps({"a": Code()}), "holds more than arrays"),
    "truncated": (WHOLE[:-40], "is damaged"),
    "cut in the middle": (WHOLE[: len(WHOLE) // 2], "is damaged"),
    "empty": (b"", "is damaged"),
    "one array": (STREAM.getvalue(), "holds one array without a name"),
    "text": (npz_bytes(a=np.array(["text"])), r"a is of the type <U4, which is no torch type"),
}


@pytest.mark.parametrize(("content", "expected"), BAD_NPZ.values(), ids=list(BAD_NPZ))
def test_bad_npz_files_are_refused(
    content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(ValueError, match=rf"model\.pretrained: .*bad\.npz:? {expected}") as caught:
        read_tensors(tmp_path / "bad.npz")
    assert "\n" not in str(caught.value)
    assert "this ran" not in capsys.readouterr().out
