"""Two processes, each with its share of the images, have the profile that one process makes of all."""

from __future__ import annotations

from functools import partial

import torch

from tests.analysis.models import own
from tests.processes import in_processes
from vit.analysis.profile import AttentionProfile, attention_profile
from vit.engine import gather_uneven, make_accelerator

IMAGES = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def share() -> AttentionProfile:
    """Of three images, or of the other two."""
    accelerator = make_accelerator("cpu", "fp32")
    mine = IMAGES[:3] if accelerator.is_main_process else IMAGES[3:]
    torch.manual_seed(0)
    return attention_profile(own(), mine, gather=partial(gather_uneven, accelerator))


def test_uneven_shares_add_up() -> None:
    torch.manual_seed(0)
    whole = attention_profile(own(), IMAGES)
    for profile in in_processes(2, share):
        assert profile.num_images == 5
        assert profile.distances.shape == (5, *whole.distances.shape[1:])
        torch.testing.assert_close(profile.sums, whole.sums, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(profile.squares, whole.squares, rtol=1e-6, atol=1e-9)
