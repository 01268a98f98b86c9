"""The description of the machine that accompanies a measured time."""

from __future__ import annotations

import torch

from vit.processor import MULTIPLIES_BFLOAT16, machine


def test_the_machine_and_the_versions() -> None:
    said = machine("cpu", ("timm", "no-such-library"))
    assert said["threads"] == torch.get_num_threads()
    assert set(said["versions"]) == {"python", "torch", "timm"}
    assert said["device"]
    assert said["multiplies_bfloat16"] == MULTIPLIES_BFLOAT16
