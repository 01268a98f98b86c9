"""What the check of commit messages refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[1] / ".ci" / "commit-message"


def check(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "message").write_text(message, encoding="utf-8")
    return subprocess.run([sys.executable, str(CHECK), str(folder / "message")], capture_output=True, text=True)


@pytest.mark.parametrize(
    "message",
    [
        "Read the digits once\n\nThey were read twice.\n# a comment\n",
        "Merge branch 'main'\n",
        "fixup! Read the digits\n",
    ],
)
def test_good_messages(message: str, tmp_path: Path) -> None:
    assert check(message, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("\n\nA body.\n", "the first line is empty"),
        ("x" * 73 + "\n\nA body.\n", "73 characters: at most 72"),
        ("One thing; another\n\nA body.\n", "one topic"),
        ("A subject.\n\nA body.\n", "full stop"),
        ("A subject\nA body.\n", "second line"),
        ("A subject\n\n# only a comment\n", "say why"),
    ],
)
def test_faults_are_named_in_one_line(message: str, fault: str, tmp_path: Path) -> None:
    found = check(message, tmp_path)
    assert found.returncode == 1
    assert fault in found.stderr
    assert found.stderr.count("\n") == 1
