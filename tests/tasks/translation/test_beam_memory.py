"""Memory shared by hypotheses is copied between sentences, and not within one."""

from __future__ import annotations

import torch

from vit.tasks.translation.beam_memory import BeamMemory


def test_reordering_within_a_sentence_copies_nothing() -> None:
    tokens, mask = torch.randn(2, 3, 5), torch.ones(2, 1)
    memory = BeamMemory(tokens, mask)
    memory.reorder(torch.tensor([0, 0, 1, 1]))
    assert torch.equal(memory.tensors[0], tokens[[0, 0, 1, 1]])
    expanded = memory.tensors
    memory.reorder(torch.tensor([1, 0, 2, 2]))
    assert memory.tensors is expanded
    memory.reorder(torch.tensor([3, 1]))
    assert torch.equal(memory.tensors[0], tokens[[1, 0]])
    assert torch.equal(memory.tensors[1], mask[[1, 0]])
