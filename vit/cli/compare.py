"""`vit compare`: models beside each other. Knows no tensors."""

from __future__ import annotations

from vit.cli.data_size import train_and_compare


def compare(words: list[str]) -> None:
    """With `--train`: recipes trained on growing parts of their data."""
    if any(word.split("=")[0] == "--train" for word in words) or words[:1] in (["-h"], ["--help"]):
        return train_and_compare(words)
    raise ValueError("compare: say what to train with --train FILE…; see `vit compare --help`")
