"""Features of one model on one split, computed once: shards on the disk, continued after an interruption.

    FOLDER/key.json                what the features depend on
    FOLDER/KIND-00012.safetensors  one kind of features of the 13th shard's images

A shard is written in one step, so a killed process leaves the whole of it or none. Shards have the same images whatever
was computed before, so a continued pass gives the same features.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from vit.config import DataConfig, check
from vit.data.loading import EvalBatch, EvalLoader, NothingDecoded
from vit.data.splits import Split
from vit.engine import Accelerator
from vit.evaluation.cache_key import cache_key, file_stem
from vit.evaluation.frozen_features import feature_reader, images_at_once
from vit.hub import OpenedModel
from vit.progress import progress_bar
from vit.runs import replace_atomically, write_json, write_safetensors

_SHARD_IMAGES = 512


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """The shards of a split. Every shard but the last has `shard_size` images, which are whole batches."""

    folder: Path
    split: Split
    shard_size: int
    key: Mapping[str, Any]

    @classmethod
    def of(
        cls, opened: OpenedModel, split: Split, data: DataConfig, folder: Path, accelerator: Accelerator
    ) -> FeatureStore:
        """The store below `folder` whose name tells the model, and a hash all that its features depend on."""
        batch_size = data.eval_batch_size
        key = cache_key(opened, split, accelerator)
        at_once = images_at_once(accelerator.device)
        key |= {"computed_by": opened.implementation, "batch_size": batch_size, "images_at_once": at_once}
        place = folder / f"{file_stem(opened)}_{hashed(key)}"
        return cls(place, split, max(1, _SHARD_IMAGES // batch_size) * batch_size, key)

    @property
    def num_shards(self) -> int:
        return -(-len(self.split) // self.shard_size)

    def path(self, kind: str, shard: int) -> Path:
        return self.folder / f"{kind}-{shard:05d}.safetensors"

    def missing(self, kinds: Sequence[str]) -> list[int]:
        """The shards that lack any of the kinds."""
        shards = range(self.num_shards)
        return [shard for shard in shards if not all(self.path(kind, shard).is_file() for kind in kinds)]

    def images_of(self, shard: int) -> Tensor:
        """Indices of a shard's images in the source."""
        return self.split.indices[shard * self.shard_size : (shard + 1) * self.shard_size]

    def shard_of(self, index: int) -> int:
        """The shard of the image with that index in the source."""
        return int(torch.searchsorted(self.split.indices, index)) // self.shard_size

    def write(self, kind: str, shard: int, tensors: Mapping[str, Tensor], seconds: float) -> None:
        """Write `indices` (n,) and `features` (n, c) that took that many seconds; a shard that is there is kept."""
        if self.path(kind, shard).is_file():
            return
        with replace_atomically(self.path(kind, shard)) as unfinished:
            write_safetensors(unfinished, tensors, {"seconds": str(seconds)})

    def read(self, kind: str) -> tuple[Tensor, Tensor]:
        """Indices (n,), ascending, and float32 features (n, c) of every image that could be read."""
        parts = self._open(kind)
        indices, features = (torch.cat([part[name] for part, _ in parts]) for name in ("indices", "features"))
        return indices, features

    def indices_of(self, kind: str, shard: int) -> set[int]:
        """Indices of the images of which a shard that is there has features."""
        with safe_open(self.path(kind, shard), framework="pt") as stored:
            return set(stored.get_tensor("indices").tolist())

    def images_per_second(self, kind: str) -> float:
        """Speed of the passes in which this kind was computed, decoding and reading images left out."""
        parts = self._open(kind)
        return sum(len(part["indices"]) for part, _ in parts) / max(sum(seconds for _, seconds in parts), 1e-9)

    def _open(self, kind: str) -> list[tuple[dict[str, Tensor], float]]:
        """Tensors and seconds of every shard that has a file."""
        parts = []
        for path in filter(Path.is_file, (self.path(kind, shard) for shard in range(self.num_shards))):
            with safe_open(path, framework="pt") as stored:
                tensors = {name: stored.get_tensor(name) for name in ("indices", "features")}
                parts.append((tensors, float(stored.metadata()["seconds"])))
        return parts


def hashed(key: Mapping[str, Any]) -> str:
    """8 hexadecimal digits of a key."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:8]


def complete(
    store: FeatureStore,
    opened: OpenedModel,
    kinds: Sequence[str],
    data: DataConfig,
    accelerator: Accelerator,
    title: str,
) -> None:
    """Compute what the store lacks of the kinds, all in one pass, shard by shard, with a progress bar.

    ValueError for broken images where `data.on_broken_image` is 'fail', even if an earlier call left them out.
    """
    missing = store.missing(kinds)
    if data.on_broken_image == "fail":
        _check_none_left_out(store, kinds, set(missing))
    if not missing:
        return
    store.folder.mkdir(parents=True, exist_ok=True)
    write_json(store.folder / "key.json", dict(store.key))
    left = Split(store.split.source, torch.cat([store.images_of(shard) for shard in missing]))
    loader = EvalLoader(left, opened.preprocessing, replace(data, cache_gib=0.0))  # images are read once
    read = feature_reader(opened, kinds, accelerator)
    total, done = len(store.split), len(store.split) - len(left)
    with progress_bar(title, total, done=done, unit="img") as bar:
        try:
            for shard, batches in groupby(loader, key=lambda batch: store.shard_of(int(batch.indices[0]))):
                _write_shard(store, shard, batches, kinds, read, bar.update)
        except NothingDecoded:
            if len(missing) == store.num_shards:  # else an earlier call has read the other shards
                raise
    opened.model.to("cpu")
    _write_empty_shards(store, store.missing(kinds), kinds)


def _check_none_left_out(store: FeatureStore, kinds: Sequence[str], missing: Container[int]) -> None:
    """ValueError that names the first image that complete shards lack."""
    for shard in (shard for shard in range(store.num_shards) if shard not in missing):
        left_out = set(store.images_of(shard).tolist()) - store.indices_of(kinds[0], shard)
        if left_out:
            name = store.split.source.name(min(left_out))
            rule = f"{name} could not be read earlier; repair it and remove {store.folder}"
            check(False, "data.on_broken_image", "fail", f"{rule}, or pass --data.on_broken_image skip")


def _write_shard(
    store: FeatureStore,
    shard: int,
    batches: Iterable[EvalBatch],
    kinds: Sequence[str],
    read: Callable[[Tensor], Mapping[str, Tensor]],
    progress: Callable[[int], object],
) -> None:
    parts: dict[str, list[Tensor]] = defaultdict(list)
    indices, seconds = [], 0.0
    for batch in batches:
        started = time.perf_counter()
        found = read(batch.images)
        seconds += time.perf_counter() - started
        indices.append(batch.indices)
        for kind, features in found.items():
            parts[kind].append(features)
        progress(len(batch.indices))
    for kind in kinds:
        tensors = {"indices": torch.cat(indices), "features": torch.cat(parts[kind])}
        store.write(kind, shard, tensors, seconds)


def _write_empty_shards(store: FeatureStore, shards: Sequence[int], kinds: Sequence[str]) -> None:
    """Write shards without a readable image: they would count as missing, and be read again, forever."""
    for kind in kinds if shards else ():
        nothing = [column[:0].clone() for column in store.read(kind)]
        for shard in shards:
            store.write(kind, shard, dict(zip(("indices", "features"), nothing, strict=True)), 0.0)
