"""Drawing takes longer than training tiny models; the tests that look at figures ask for them."""

from __future__ import annotations

import pytest

from vit.training import finish


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "draw_run", lambda *_: None)
