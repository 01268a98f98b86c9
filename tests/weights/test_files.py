"""Files of tensors: reading, and one-line errors for damaged, foreign and executable files."""

from __future__ import annotations

import io
import pickle
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file
from torch import Tensor

from vit.weights.files import SUFFIXES, read_file, read_tensors, write_tensors


class Code:
    """An object whose pickle runs code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("this ran",))


TENSORS = {"a": torch.arange(3.0)}
WRAPPED: dict[str, Any] = {
    "plain.pth": TENSORS,
    "wrapped.pt": {"state_dict": TENSORS, "epoch": 3},
    "model.bin": {"model": TENSORS},
    "old.th": {"state_dict": {f"module.{name}": tensor for name, tensor in TENSORS.items()}, "best_prec1": 91.7},
}


@pytest.mark.parametrize(("name", "content"), WRAPPED.items(), ids=list(WRAPPED))
def test_torch_files_of_plain_tensors_are_read(name: str, content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / name)
    assert_tensors(read_tensors(tmp_path / name))


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a.safetensors")
    assert_tensors(read_tensors(tmp_path / "a.safetensors"))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "timm_model."])
def test_prefixes_of_wrappers_are_removed_and_said(prefix: str, tmp_path: Path) -> None:
    save_file({f"{prefix}{name}": tensor for name, tensor in TENSORS.items()}, tmp_path / "a.safetensors")
    file = read_file(tmp_path / "a.safetensors")
    assert_tensors(file.tensors)
    assert (file.prefix, file.note) == (prefix, f"prefix {prefix} removed from every name")


def test_a_prefix_of_some_names_alone_stays(tmp_path: Path) -> None:
    tensors = {"module.a": torch.zeros(1), "b": torch.zeros(1)}
    torch.save(
        {"state_dict": tensors, "state_dict_ema": {f"module.{name}": t for name, t in tensors.items()}},
        tmp_path / "a.pt",
    )
    file = read_file(tmp_path / "a.pt")
    assert list(file.tensors) == ["module.a", "b"]
    assert file.note == "state_dict_ema used, state_dict ignored, prefix module. removed from every name"


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
    "text": (npz_bytes(a=np.array(["text"])), r"a is of the type <U4, which torch does not have"),
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


def torch_bytes(content: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


MANY = {"weight": torch.arange(64.0).reshape(8, 8), "bias": torch.arange(8.0)}
FILES: dict[str, bytes] = {
    "a.safetensors": save(MANY),
    "zip.pth": torch_bytes(MANY),
    "old.pth": torch_bytes(MANY, _use_new_zipfile_serialization=False),
    "a.npz": npz_bytes(**{name: tensor.numpy() for name, tensor in MANY.items()}),
}


def complaint(path: Path, content: bytes) -> str | None:
    """The error for these bytes; None: they are read."""
    path.write_bytes(content)
    try:
        read_tensors(path)
    except ValueError as error:
        return str(error)
    return None


def assert_one_line(said: str | None, name: str) -> None:
    assert said is None or (said.startswith("model.pretrained: ") and name in said and "\n" not in said), said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_corrupt_file_is_a_one_line_error(name: str, tmp_path: Path) -> None:
    whole = FILES[name]
    generator = random.Random(0)
    for cut in generator.sample(range(len(whole)), 60):
        assert_one_line(complaint(tmp_path / name, whole[:cut]), name)
    for place in [*range(0, len(whole), max(1, len(whole) // 150)), *range(100)]:
        corrupt = bytearray(whole)
        corrupt[place] ^= 1 << generator.randrange(8)
        assert_one_line(complaint(tmp_path / name, bytes(corrupt)), name)


@pytest.mark.parametrize(
    "error",
    [IndexError, struct.error, AssertionError, KeyError, TypeError, AttributeError, zlib.error, OSError, OverflowError],
)
def test_every_error_of_a_reader_means_damage(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pth").write_bytes(FILES["old.pth"])

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch, "load", broken)
    with pytest.raises(ValueError, match=rf"a\.pth is damaged: {error.__name__}"):
        read_tensors(tmp_path / "a.pth")


def test_a_corrupt_number_in_a_zip_is_detected(tmp_path: Path) -> None:
    whole = FILES["zip.pth"]
    place = whole.index(MANY["weight"].numpy().tobytes()) + 8
    corrupt = bytearray(whole)
    corrupt[place] ^= 1
    (tmp_path / "a.pth").write_bytes(corrupt)
    with pytest.raises(ValueError, match=r"a\.pth is damaged: the checksum of .*/data/0 in it is wrong"):
        read_tensors(tmp_path / "a.pth")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pth").mkdir()
    with pytest.raises(ValueError, match=r"a\.pth cannot be read: Is a directory"):
        read_tensors(tmp_path / "a.pth")


OTHER = {"a": torch.zeros(3)}
SETS: dict[str, tuple[dict[str, Any], str]] = {
    "timm's average": (
        {"state_dict": OTHER, "state_dict_ema": TENSORS},
        "state_dict_ema used, state_dict ignored",
    ),
    "facebook's average": ({"model": OTHER, "model_ema": TENSORS, "epoch": 3}, "model_ema used, model ignored"),
    "dino": ({"student": OTHER, "teacher": TENSORS}, "teacher used, student ignored"),
    "another name": ({"model": TENSORS, "best": OTHER}, "model used, best ignored"),
    "an average of another kind": (
        {"model": TENSORS, "model_ema": {"decay": 0.9, "module": OTHER}},
        "model used, model_ema ignored",
    ),
    "no average kept": ({"state_dict": TENSORS, "state_dict_ema": None}, ""),
    "an optimizer": ({"model": TENSORS, "optimizer": {"state": {}, "param_groups": []}, "lr": torch.zeros(1)}, ""),
}


@pytest.mark.parametrize(("content", "said"), SETS.values(), ids=list(SETS))
def test_the_selected_set_of_weights_is_reported(content: dict[str, Any], said: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pth")
    file = read_file(tmp_path / "a.pth")
    assert_tensors(file.tensors)
    assert file.selection == said
    if said:
        with pytest.raises(ValueError, match=rf"a\.pth holds several sets of weights \({said}\)"):
            read_tensors(tmp_path / "a.pth")


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights.pth"
    write_tensors(file, {"a": torch.ones(3)})

    def full(_: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write_tensors(file, {"a": torch.zeros(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["weights.pth"]
    assert torch.equal(read_tensors(file)["a"], torch.ones(3))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
def test_every_kind_takes_views_ties_gradients_and_any_name(suffix: str, tmp_path: Path) -> None:
    whole = torch.randn(1_000, 1_000)
    tensors = {"file": whole[:3, 0], "tied": whole[:3, 0], "learned": torch.ones(2, requires_grad=True)}
    write_tensors(tmp_path / f"w{suffix}", tensors)
    assert (tmp_path / f"w{suffix}").stat().st_size < 10_000
    read = read_tensors(tmp_path / f"w{suffix}")
    assert {name: value.tolist() for name, value in read.items()} == {
        name: value.tolist() for name, value in tensors.items()
    }


def test_numpys_archives_hold_no_bfloat16(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--output: .*w\.npz' is not valid: a is bfloat16, which numpy lacks"):
        write_tensors(tmp_path / "w.npz", {"a": torch.ones(2, dtype=torch.bfloat16)})
    assert not list(tmp_path.iterdir())


def test_what_a_link_names_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "w.pth").symlink_to("big/w.pth")
    write_tensors(tmp_path / "w.pth", {"a": torch.ones(2)})
    assert (tmp_path / "w.pth").is_symlink()
    assert read_tensors(tmp_path / "big" / "w.pth")["a"].tolist() == [1, 1]


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
def test_a_sparse_tensor_is_named(suffix: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^--output: .* is not valid: a is sparse; weights are plain arrays"):
        write_tensors(tmp_path / f"w{suffix}", {"a": torch.eye(3).to_sparse()})
