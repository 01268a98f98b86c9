"""What hypotheses share is moved between sentences, and left where it is within one."""

import torch

from vit.models.memory import SharedMemory


def test_rows_of_one_sentence_change_places_without_a_copy():
    tokens, mask = torch.randn(2, 3, 5), torch.ones(2, 1)
    memory = SharedMemory(tokens, mask)
    memory.reorder(torch.tensor([0, 0, 1, 1]))
    assert torch.equal(memory.tensors[0], tokens[[0, 0, 1, 1]])
    expanded = memory.tensors
    memory.reorder(torch.tensor([1, 0, 2, 2]))
    assert memory.tensors is expanded
    memory.reorder(torch.tensor([3, 1]))
    assert torch.equal(memory.tensors[0], tokens[[1, 0]])
    assert torch.equal(memory.tensors[1], mask[[1, 0]])
