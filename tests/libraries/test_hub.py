"""Models on the hub without a network: one request, one line, soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError

from vit.cli import main
from vit.libraries.hub import SECONDS, check_reached


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, float]]:
    """Addresses and time limits of the requests, which all fail; the cache is empty."""
    requests: list[tuple[str, float]] = []

    def fail(url: str, *, timeout: float) -> Any:
        requests.append((url, timeout))
        raise OSError("Name or service\nnot known")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", fail)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return requests


@pytest.mark.parametrize("model", ["hf:somebody/vit", "timm:vit_tiny_patch16_224.augreg_in21k"])
def test_without_a_network_the_hub_is_asked_once(
    model: str, asked: list[tuple[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", model, "x.png"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "was not reached (Name or service not known); without a network, give the path of a file or folder" in line
    ((url, seconds),) = asked
    assert url.endswith("/resolve/main/config.json")
    assert seconds == SECONDS <= 5


def test_what_is_cached_is_not_asked_for(asked: list[tuple[str, float]], tmp_path: Path) -> None:
    (tmp_path / "models--somebody--vit" / "snapshots" / "abc").mkdir(parents=True)
    check_reached("somebody/vit")
    assert asked == []
    with pytest.raises(ValueError, match="'somebody/other' could not be fetched"):
        check_reached("somebody/other")


def test_an_answer_of_the_hub_is_left_to_the_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answer(*_: object, **__: object) -> None:
        raise EntryNotFoundError("404")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answer)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    check_reached("somebody/vit")
