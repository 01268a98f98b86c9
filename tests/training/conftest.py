"""Drawing takes longer than training tiny models; the tests that look at figures ask for them."""

from __future__ import annotations

import pytest


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.tasks.classification.report.draw_run", lambda *_: None)
