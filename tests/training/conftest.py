"""Drawing takes longer than training tiny models; the tests that look at figures ask for them."""

from __future__ import annotations

import pytest

from vit.training.tasks import classification


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "draw_run", lambda *_: None)
