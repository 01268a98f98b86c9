from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vit.evaluation.predictions import Predictions


def make(**changes: object) -> Predictions:
    fields: dict[str, Any] = {
        "indices": np.array([3, 5, 11]),
        "labels": np.array([0, 1, 1]),
        "logits": np.array([[1, 0], [0.5, 2], [3, 4]], dtype=np.float32),
        "class_names": ["Katze", "Öl, 油"],
        "num_total": 5,
        "num_broken": 2,
    }
    return Predictions(**(fields | changes))


def test_a_file_gives_back_every_bit(tmp_path: Path) -> None:
    before = make()
    before.save(tmp_path / "deep" / "test.npz")
    after = Predictions.load(tmp_path / "deep" / "test.npz")
    for name in ("indices", "labels", "logits"):
        assert getattr(after, name).dtype == getattr(before, name).dtype
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert after.class_names == before.class_names
    assert (after.num_total, after.num_broken) == (5, 2)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["test.npz"]


def test_the_name_of_the_file_is_kept(tmp_path: Path) -> None:
    make().save(tmp_path / "answers")
    assert (tmp_path / "answers").is_file()


def test_nothing_pickled_is_written_or_read(tmp_path: Path) -> None:
    make().save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as stored:
        assert all(stored[name].dtype != object for name in stored.files)
    np.savez(tmp_path / "b.npz", indices=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"b\.npz"):
        Predictions.load(tmp_path / "b.npz")


@pytest.mark.parametrize("damage", ["missing", "cut", "text", "incomplete", "empty", "flipped", "contradiction"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "broken.npz"
    make().save(path)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "incomplete":
        np.savez(path, indices=np.arange(3))
    elif damage == "contradiction":
        with np.load(path) as stored:
            np.savez(path, **{**stored, "indices": np.array([3, 3, 11])})
    elif damage == "flipped":
        start = content.index(b"indices.npy") + len("indices.npy") + 20
        path.write_bytes(
            content[:start] + bytes(byte ^ 255 for byte in content[start : start + 9]) + content[start + 9 :]
        )
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "text": b"hello", "empty": b""}[damage])
    with pytest.raises(ValueError, match=r"predictions: .*broken\.npz"):
        Predictions.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"indices": np.array([3, 3, 11])},
        {"indices": np.array([5, 3, 11])},
        {"labels": np.array([0, 1, 2])},
        {"labels": np.array([0, -1, 1])},
        {"labels": np.array([0, 1])},
        {"class_names": ["one"]},
        {"logits": np.zeros((3, 2))},
    ],
)
def test_a_contradiction_in_the_record_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        make(**changes)


def test_the_fingerprint_is_kept_and_an_older_file_has_none(tmp_path: Path) -> None:
    make(fingerprint="0123456789ab").save(tmp_path / "new.npz")
    assert Predictions.load(tmp_path / "new.npz").fingerprint == "0123456789ab"
    with np.load(tmp_path / "new.npz") as stored:
        np.savez(tmp_path / "old.npz", **{name: stored[name] for name in stored.files if name != "fingerprint"})
    assert Predictions.load(tmp_path / "old.npz").fingerprint == ""
