"""Hugging Face's hub, asked once whether it can be reached before a library asks for files and waits.

Its client repeats a request that failed five times, and timm does so for each file that a model may have: half a minute
to a minute until somebody without a network is told.
"""

from __future__ import annotations

from pathlib import Path

SECONDS = 5.0


def check_reached(repository: str) -> None:
    """ValueError, in one line, where files of `repository` are not in the cache and the hub does not answer.

    What the hub answers, as that there is no such repository, is left to the caller's own request.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    cached = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "snapshots"
    if constants.HF_HUB_OFFLINE or (cached.is_dir() and any(cached.iterdir())):
        return
    try:
        get_hf_file_metadata(hf_hub_url(repository, "config.json"), timeout=SECONDS)
    except (EntryNotFoundError, HfHubHTTPError, HFValidationError):
        return
    except Exception as error:  # noqa: BLE001  which HTTP client the hub's has, and so its errors, differs by version
        reason = " ".join(str(error).split())[:120]
        raise ValueError(
            f"model.pretrained: {repository!r} could not be fetched: {constants.ENDPOINT} was not reached ({reason}); "
            "without a network, give the path of a file or folder"
        ) from None
