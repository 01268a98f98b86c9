"""A folder of the Hugging Face hub's cache, fetched by name: `config.json` and one set of weights.

Through huggingface_hub's own download and cache; it works offline for what the cache holds.
"""

from __future__ import annotations

import json
from pathlib import Path

INDEX = "model.safetensors.index.json"


def fetch_folder(name: str, *others: str) -> Path:
    """The cache's folder of `name`, with those of the files `others` that there are.

    ValueError, in one line, for what cannot be fetched.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        folder = Path(hf_hub_download(name, "config.json")).parent
        _fetch_weights(name)
        for other in others:
            _fetch_if_there(name, other)
    except (OSError, ValueError, EntryNotFoundError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"model.pretrained: {name!r} could not be fetched from the hub ({reason}); "
            "without a network, give the path of a folder"
        ) from error
    return folder


def _fetch_weights(name: str) -> None:
    from huggingface_hub import hf_hub_download

    if _fetch_if_there(name, "model.safetensors"):
        return
    index = _fetch_if_there(name, INDEX)
    if index is None:
        hf_hub_download(name, "pytorch_model.bin")
        return
    for shard in sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values())):
        hf_hub_download(name, shard)


def _fetch_if_there(name: str, file: str) -> str | None:
    """A file's path; None where the hub, or offline the cache, has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        path: str = hf_hub_download(name, file)
    except EntryNotFoundError:
        return None
    return path
