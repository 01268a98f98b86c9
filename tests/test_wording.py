"""Numbers with their unit: no number is shown as zeros."""

from __future__ import annotations

import pytest

from vit.wording import in_giga


@pytest.mark.parametrize(
    ("number", "text"), [(1.817e8, "0.1817 G"), (3.3e6, "0.0033 G"), (1e5, "0.0001 G"), (37_900, "37.9 k")]
)
def test_multiply_adds(number: float, text: str) -> None:
    assert in_giga(number) == text
