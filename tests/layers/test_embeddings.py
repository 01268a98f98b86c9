"""Token tables: shared ones are one parameter."""

from __future__ import annotations

import pytest
import torch

from vit.layers.embeddings import TokenTables


@pytest.mark.parametrize(("share", "tie", "count"), [(0, 0, 7 + 7 + 7), (1, 0, 14), (0, 1, 14), (1, 1, 7)])
def test_shared_parameters_are_counted_and_saved_once(share: int, tie: int, count: int) -> None:
    tables = TokenTables(3, 7, 7, share=bool(share), tie_output=bool(tie))
    assert sum(p.numel() for p in tables.parameters()) == 3 * count
    assert sum(t.numel() for t in tables.state_dict().values()) == 3 * count


def test_vectors_and_logits_by_hand() -> None:
    tables = TokenTables(4, 2, 3, share=False, tie_output=True)
    tokens = torch.tensor([[1, 0]])
    torch.testing.assert_close(tables.source(tokens), 2 * tables.source_table.weight[tokens])
    assert tables.target_table is not None
    torch.testing.assert_close(tables.target(tokens), 2 * tables.target_table.weight[tokens])
    vectors = torch.randn(1, 2, 4)
    torch.testing.assert_close(tables.logits(vectors), vectors @ tables.target_table.weight.T)
    untied = TokenTables(4, 2, 3, share=False, tie_output=False)
    assert untied.output is not None
    torch.testing.assert_close(untied.logits(vectors), vectors @ untied.output.weight.T)


def test_two_vocabularies_share_nothing() -> None:
    with pytest.raises(ValueError, match=r"model.share_embeddings: True is not valid: the source has 7 tokens and the"):
        TokenTables(3, 7, 8, share=True, tie_output=True)
