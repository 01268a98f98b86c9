"""A disk that loses what was not synced: the state in which a power cut at a chosen moment may leave a folder.

While it watches, every `os.fsync` of a file or folder is noted with what it made durable. A cut keeps of each file what
was synced last, or a part or all of what was written since (unsynced data may reach the disk in any order), and of
each folder the entries that were synced last or those it has now.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_WATCHED = ("fsync", "rename", "replace", "mkdir")


class Disk:
    """Watches the folder `base`; what is in it from the start is durable."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.events = 0
        """Number of moments at which a cut was possible: before and after each of `_WATCHED`."""
        self._contents: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, int]] = {}
        self._held: dict[int, int] = {}
        """Inode → a descriptor, so that no other file gets the inode of one that was deleted."""
        for path in (base, *base.rglob("*")):
            descriptor = os.open(path, os.O_RDONLY)
            self._note(descriptor)
            os.close(descriptor)

    @contextmanager
    def watched(self, at_event: Callable[[int], None]) -> Iterator[None]:
        """Note what is synced, and call `at_event(number)` at every moment at which a cut is possible."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _WATCHED:
                patch.setattr(os, name, self._watch(name, getattr(os, name), at_event))
            yield
        for descriptor in self._held.values():
            os.close(descriptor)

    def _watch(self, name: str, original: Callable[..., Any], at_event: Callable[[int], None]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not self._is_inside(arguments[0]):
                return original(*arguments, **options)
            self._count(at_event)
            result = original(*arguments, **options)
            if name == "fsync":
                self._note(arguments[0])
            self._count(at_event)
            return result

        return call

    def _is_inside(self, place: Any) -> bool:
        path = Path(f"/proc/self/fd/{place}").readlink() if isinstance(place, int) else Path(place)
        return path.is_relative_to(self.base)

    def _count(self, at_event: Callable[[int], None]) -> None:
        self.events += 1
        at_event(self.events)

    def _note(self, descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self._note_folder(descriptor)
        else:
            inode = self._hold(Path(f"/proc/self/fd/{descriptor}"))
            self._contents[inode] = Path(f"/proc/self/fd/{self._held[inode]}").read_bytes()

    def _note_folder(self, descriptor: int) -> None:
        folder = Path(f"/proc/self/fd/{descriptor}")
        self._entries[self._hold(folder)] = self._listed(folder)

    def _listed(self, folder: Path) -> dict[str, int]:
        return {path.name: self._hold(path) for path in sorted(folder.iterdir())}

    def _hold(self, path: Path) -> int:
        inode = path.stat().st_ino
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)
        return inode

    def after_cut(self, target: Path, chance: random.Random | None) -> None:
        """Write into `target` what a cut at this moment leaves of `base`; without `chance`, all that was not synced is
        lost.
        """
        self._leave(self.base.stat().st_ino, target, chance)

    def _leave(self, inode: int, target: Path, chance: random.Random | None) -> None:
        place = Path(f"/proc/self/fd/{self._held[inode]}")
        if not place.is_dir():
            target.write_bytes(self._survivor(self._contents.get(inode, b""), place.read_bytes(), chance))
            return
        target.mkdir(exist_ok=True)
        now = self._listed(place) if os.fstat(self._held[inode]).st_nlink else {}
        for name, entry in (now if chance and chance.random() < 0.5 else self._entries.get(inode, {})).items():
            self._leave(entry, target / name, chance)

    def _survivor(self, synced: bytes, written: bytes, chance: random.Random | None) -> bytes:
        """Of what was written since the last sync all, nothing or a part may have reached the disk."""
        if chance is None:
            return synced
        if not written.startswith(synced):
            return chance.choice((synced, written))
        return written[: chance.choice((len(synced), len(written), chance.randint(len(synced), len(written))))]
