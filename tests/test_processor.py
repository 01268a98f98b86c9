"""The description of the machine that accompanies a measured time."""

from __future__ import annotations

import pytest
import torch

from vit.processor import MULTIPLIES_BFLOAT16, machine, multiplies_bfloat16


def test_the_machine_and_the_versions() -> None:
    said = machine("cpu", ("timm", "no-such-library"))
    assert said["threads"] == torch.get_num_threads()
    assert set(said["versions"]) == {"python", "torch", "timm"}
    assert said["device"]
    assert said["multiplies_bfloat16"] == MULTIPLIES_BFLOAT16


@pytest.mark.parametrize(
    ("avx512", "amx", "vendor", "expected"),
    [
        (True, False, "AuthenticAMD", True),
        (True, False, "GenuineIntel", False),
        (True, False, "", False),
        (True, True, "GenuineIntel", True),
        (False, False, "AuthenticAMD", False),
    ],
)
def test_bfloat16_counts_where_it_is_faster(avx512: bool, amx: bool, vendor: str, expected: bool) -> None:
    assert multiplies_bfloat16(avx512=avx512, amx=amx, vendor=vendor) == expected
