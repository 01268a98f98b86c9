"""The run folder: whole or absent after any death, refused by name when damaged, and never a pickle."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import pytest
import torch

from vit.runs import (
    Checkpoint,
    DamagedCheckpoint,
    append_metrics,
    checkpoints,
    damaged_checkpoints,
    discard_after,
    find_checkpoint,
    holds_checkpoints,
    last_checkpoint,
    read_checkpoint,
    read_metrics,
    replace_atomically,
    restore_metrics,
    verify_checkpoint,
    write_checkpoint,
    write_json,
)


def made(value: float, best: int | None = None) -> Checkpoint:
    tensors = {
        "model": {"weight": torch.full((3, 5), value), "count": torch.tensor(7)},
        "ema": {"weight": torch.ones(2)},
    }
    return Checkpoint({"value": value, "best": None if best is None else {"step": best, "value": 0.5}}, tensors)


def steps_in(run: Path) -> list[int]:
    return [int(folder.name.removeprefix("step-")) for folder in sorted((run / "checkpoints").glob("step-*"))]


def test_weights_have_the_rights_of_any_new_file(tmp_path: Path) -> None:
    """The library's own are for its user alone, which shuts out the others of a shared machine."""
    (tmp_path / "plain").touch()
    written = write_checkpoint(tmp_path, 1, made(0.0))
    for file in written.iterdir():
        assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode, file.name


def test_a_checkpoint_reads_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {"model": {"a": torch.randn(3, 7), "b": torch.randn(5, 2).T, "c": torch.randn(4).to(torch.bfloat16)}}
    path = write_checkpoint(tmp_path, 11, Checkpoint({"progress": {"step": 11}}, tensors))
    read = read_checkpoint(path)
    assert path.name == "step-00000011"
    assert read.path == path
    assert read.state == {"progress": {"step": 11}}
    for name, tensor in tensors["model"].items():
        assert torch.equal(read.tensors["model"][name], tensor)
        assert read.tensors["model"][name].dtype == tensor.dtype


def test_groups_limit_what_is_read(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, made(1.0))
    assert set(read_checkpoint(path).tensors) == {"model", "ema"}
    assert set(read_checkpoint(path, ["ema", "absent"]).tensors) == {"ema"}


def test_every_file_is_hashed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, made(1.0))
    hashes = json.loads((path / "hashes.json").read_text())
    assert set(hashes) == {file.name for file in path.iterdir()} - {"hashes.json"}


@pytest.mark.parametrize("name", ["model.safetensors", "ema.safetensors", "state.json", "hashes.json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "empty"])
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_used(
    tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = write_checkpoint(tmp_path, 1, made(1.0))
    path = write_checkpoint(tmp_path, 2, made(2.0))
    file = path / name
    content = file.read_bytes()
    if damage == "truncated":
        file.write_bytes(content[:-3])
    elif damage == "altered":
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"")
    with pytest.raises(DamagedCheckpoint, match="step-00000002"):
        verify_checkpoint(path)
    with pytest.raises(DamagedCheckpoint, match="step-00000002"):
        read_checkpoint(path)
    assert last_checkpoint(tmp_path) == before
    assert "step-00000002" in caplog.text
    if name != "hashes.json":
        assert name in caplog.text
    assert find_checkpoint(tmp_path, "last") == before


def test_a_file_that_has_not_changed_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command looks at a run's checkpoint several times, which may be gigabytes."""
    path = write_checkpoint(tmp_path, 1, made(1.0))
    hashed: list[str] = []
    read = checkpoints._sha256
    monkeypatch.setattr(checkpoints, "_sha256", lambda file: hashed.append(file.name) or read(file))
    verify_checkpoint(path)
    verify_checkpoint(path)
    files = 3
    assert len(hashed) == 2 * files, "written this moment, they may change within a tick of the clock"
    monkeypatch.setattr(checkpoints, "_TICK", -1.0)
    for _ in range(3):
        verify_checkpoint(path)
    assert len(hashed) == 3 * files
    file = path / "model.safetensors"
    content = file.read_bytes()
    time.sleep(0.05)
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors is not what was written"):
        verify_checkpoint(path)


def test_a_list_of_hashes_that_lost_an_entry_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1, made(1.0))
    hashes = json.loads((path / "hashes.json").read_text())
    for name in hashes:
        rest = {key: value for key, value in hashes.items() if key != name}
        (path / "hashes.json").write_text(json.dumps(rest))
        with pytest.raises(DamagedCheckpoint, match="hashes"):
            verify_checkpoint(path)


def test_a_checkpoint_of_another_step_is_refused(tmp_path: Path) -> None:
    state = {"progress": {"step": 3}}
    path = write_checkpoint(tmp_path, 3, Checkpoint(state, {}))
    path.rename(path.with_name("anywhere"))
    assert read_checkpoint(path.with_name("anywhere")).state == state
    path.with_name("anywhere").rename(path.with_name("step-00000004"))
    with pytest.raises(DamagedCheckpoint, match="step-00000004 holds the checkpoint of step 3, which was written else"):
        read_checkpoint(path.with_name("step-00000004"))


def test_the_last_two_and_the_best_of_each_are_kept(tmp_path: Path) -> None:
    bests = {1: 1, 2: 1, 3: 3, 4: 3, 5: 3, 6: 6, 7: 6}
    left = {}
    for step, best in bests.items():
        write_checkpoint(tmp_path, step, made(float(step), best))
        left[step] = steps_in(tmp_path)
    assert left == {
        1: [1],
        2: [1, 2],
        3: [1, 2, 3],  # 2 may be fallen back to, and its best is 1
        4: [3, 4],
        5: [3, 4, 5],
        6: [3, 5, 6],
        7: [6, 7],
    }


def test_nothing_is_left_where_a_write_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_checkpoint(tmp_path, 1, made(1.0))
    with monkeypatch.context() as patch:
        patch.setattr(
            "vit.runs.checkpoints.flush", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(OSError, match="No space"):
            write_checkpoint(tmp_path, 2, made(2.0))
    assert last_checkpoint(tmp_path) == first
    assert steps_in(tmp_path) == [1]
    (tmp_path / "checkpoints" / ".writing-step-00000009-1").mkdir()
    (tmp_path / "checkpoints" / ".removing-step-00000009-1").mkdir()
    write_checkpoint(tmp_path, 3, made(3.0))
    assert sorted(file.name for file in (tmp_path / "checkpoints").iterdir()) == ["step-00000001", "step-00000003"]


def test_a_full_disk_is_an_operating_system_error(tmp_path: Path) -> None:
    """safetensors reports one as an error of its own."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    first = write_checkpoint(tmp_path, 1, made(1.0))
    big = Checkpoint({}, {"model": {"weight": torch.zeros(1 << 16)}})
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, limits[1]))
    try:
        with pytest.raises(OSError, match="step-00000002"):
            write_checkpoint(tmp_path, 2, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert last_checkpoint(tmp_path) == first


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 4, made(1.0))
    path = write_checkpoint(tmp_path, 4, made(2.0))
    assert read_checkpoint(path).state["value"] == 2.0
    assert steps_in(tmp_path) == [4]


def test_discard_after_drops_only_what_is_newer(tmp_path: Path) -> None:
    for step in (3, 20, 100):
        write_checkpoint(tmp_path, step, made(float(step)), keep=3)
    discard_after(tmp_path, 20)
    assert steps_in(tmp_path) == [3, 20]
    discard_after(tmp_path, 0)
    assert steps_in(tmp_path) == []


def test_best_or_last_of_a_run_or_a_folder_itself(tmp_path: Path) -> None:
    best = write_checkpoint(tmp_path, 1, made(1.0, best=1))
    last = write_checkpoint(tmp_path, 2, made(2.0, best=1))
    assert find_checkpoint(tmp_path) == best
    assert find_checkpoint(tmp_path, "last") == last
    assert find_checkpoint(last) == last
    assert holds_checkpoints(tmp_path)
    assert holds_checkpoints(last)


def test_a_damaged_best_is_named_and_the_last_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    best = write_checkpoint(tmp_path, 1, made(1.0, best=1))
    last = write_checkpoint(tmp_path, 2, made(2.0, best=1))
    (best / "model.safetensors").write_bytes(b"cut short")
    assert find_checkpoint(tmp_path) == last
    assert str(best / "model.safetensors") in caplog.text
    assert "using the last, step-00000002" in caplog.text
    assert len(damaged_checkpoints(tmp_path)) == 1
    assert "step-00000001" in damaged_checkpoints(tmp_path)[0]


def test_json_holds_no_number_that_json_has_not(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"top1": None})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"top1": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text()) == {"top1": None}


def test_where_none_was_validated_the_last_is_the_best(tmp_path: Path) -> None:
    last = write_checkpoint(tmp_path, 1, made(1.0))
    assert find_checkpoint(tmp_path, "best") == last


def test_where_all_are_damaged_each_damage_is_named(tmp_path: Path) -> None:
    for step in (1, 2):
        (write_checkpoint(tmp_path, step, made(step)) / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"no readable checkpoint \(.*step-0+2/model.*; .*step-0+1/model"):
        find_checkpoint(tmp_path)


def test_a_folder_without_checkpoints_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{tmp_path}.* holds no readable checkpoint"):
        find_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        find_checkpoint(tmp_path / "absent")
    assert not holds_checkpoints(tmp_path)
    assert last_checkpoint(tmp_path / "absent") is None


def test_write_json_leaves_the_old_file_when_it_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_json(path, {"top1": 0.5})
    monkeypatch.setattr(
        "vit.runs.writing.flush", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"top1": 0.75})
    assert json.loads(path.read_text()) == {"top1": 0.5}


def test_metrics_are_rewound_to_a_step(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        append_metrics(tmp_path, {"step": step, "loss": step / 10})
    restore_metrics(tmp_path, 10, None)
    assert [record["step"] for record in read_metrics(tmp_path)] == [5, 10]
    append_metrics(tmp_path, {"step": 15})
    assert [record["step"] for record in read_metrics(tmp_path)] == [5, 10, 15]


def test_a_line_that_a_killed_process_left_unfinished_is_forgotten(tmp_path: Path) -> None:
    append_metrics(tmp_path, {"step": 5})
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 10, "lo')
    assert read_metrics(tmp_path) == [{"step": 5}]
    restore_metrics(tmp_path, 5, None)
    append_metrics(tmp_path, {"step": 10})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 5}\n{"step": 10}\n'


def test_metrics_of_a_run_that_has_none(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    restore_metrics(tmp_path, 0, None)
    assert read_metrics(tmp_path) == []


def test_no_checkpoint_file_is_a_pickle(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, made(1.0))
    assert_no_pickle(tmp_path)


KINDS = {
    ".safetensors",
    ".json",
    ".jsonl",
    ".yaml",
    ".yml",
    ".csv",
    ".tsv",
    ".npz",
    ".png",
    ".svg",
    ".md",
    ".html",
    ".log",
}
"""Suffixes of the files of a run."""


def assert_no_pickle(run: Path) -> None:
    """No file is a pickle or an archive that could hold one; `.npz` files hold arrays of numbers only."""
    for file in (path for path in run.rglob("*") if path.is_file()):
        is_trackers = file.name.startswith("events.out.tfevents")
        assert file.suffix in KINDS or is_trackers, f"{file} is of a kind that runs do not have"
        content = file.read_bytes()
        assert not content.startswith(b"\x80"), f"{file} begins like a pickle"
        if zipfile.is_zipfile(file):
            assert file.suffix == ".npz", f"{file} is an archive"
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    header = archive.read(name)[:128]
                    assert header.startswith(b"\x93NUMPY"), f"{file}: {name} is not an array"
                    assert b"'|O'" not in header, f"{file}: {name} holds objects"


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    with replace_atomically(path) as unfinished:
        unfinished.write_text("old")
        assert not path.exists()
        assert unfinished.suffix == ".json"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_checkpoint_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_checkpoint(tmp_path, 1, made(1.0))
    (write_checkpoint(tmp_path, 2, made(2.0)) / "model.safetensors").write_bytes(b"")
    for _ in range(3):
        find_checkpoint(tmp_path)
    assert len([each for each in caplog.messages if "refused a damaged checkpoint" in each]) == 1


def test_the_same_step_again_is_never_without_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, 3, made(1.0))
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("a kill here would leave no folder of this name"))
    assert read_checkpoint(write_checkpoint(tmp_path, 3, made(2.0))).state["value"] == 2.0


def test_without_the_systems_exchange_two_renames_replace_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.runs.writing.ctypes.CDLL", lambda _: None)
    for value in (1.0, 2.0):
        write_checkpoint(tmp_path, 3, made(value))
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]
    assert read_checkpoint(tmp_path / "checkpoints" / "step-00000003").state["value"] == 2.0


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        write_checkpoint(tmp_path, step, made(0.0))
    assert known(last_checkpoint(tmp_path)).name == "step-100000000"
    discard_after(tmp_path, 99_999_999)
    assert known(last_checkpoint(tmp_path)).name == "step-99999999"


def known(path: Path | None) -> Path:
    assert path is not None
    return path
