"""The BERT-layout encoder by itself: masks, pooling, refusals. Against `transformers`: tests/weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vit.config import BertConfig
from vit.models.text_encoder import Pooling, TextEncoder
from vit.randomness import SampleRandom

B, N, C = 3, 7, 12
LENGTHS = torch.tensor([7, 2, 5])
TOKENS = torch.randint(11, (B, N), generator=torch.Generator().manual_seed(0))
REAL = torch.arange(N) < LENGTHS[:, None]


def build(**options: Any) -> TextEncoder:
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 11, "width": C, "depth": 2, "num_heads": 3, "hidden_width": 17, "max_length": N}
    model = TextEncoder(BertConfig(**sizes | options)).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def test_lengths_and_mask_are_equivalent_and_exclusive() -> None:
    model = build()
    torch.testing.assert_close(model(TOKENS, LENGTHS), model(TOKENS, mask=REAL.long()))
    torch.testing.assert_close(model(TOKENS), model(TOKENS, torch.tensor([N] * B)))
    with pytest.raises(ValueError, match="mask: it is not valid together with lengths"):
        model(TOKENS, LENGTHS, mask=REAL)


@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_padding_is_irrelevant_to_a_sentence(pooling: Pooling) -> None:
    model = build()
    together = model.sentence_embedding(TOKENS, LENGTHS, pooling=pooling)
    assert together.shape == (B, C)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model.sentence_embedding(TOKENS[row : row + 1, :length], pooling=pooling)
        torch.testing.assert_close(together[row], alone[0])


def test_pooling_by_hand() -> None:
    model = build()
    hidden = model(TOKENS, LENGTHS)
    mean = model.sentence_embedding(TOKENS, LENGTHS)
    torch.testing.assert_close(mean[1], (hidden[1, 0] + hidden[1, 1]) / 2)
    torch.testing.assert_close(model.sentence_embedding(TOKENS, LENGTHS, pooling="cls"), hidden[:, 0])
    assert model.pooler is not None
    pooled = torch.tanh(hidden[:, 0] @ model.pooler.weight.T + model.pooler.bias)
    torch.testing.assert_close(model.sentence_embedding(TOKENS, LENGTHS, pooling="pooler"), pooled)


def test_refusals() -> None:
    model = build(pooler=False)
    with pytest.raises(ValueError, match="pooling: 'pooler' is not valid: the weights came without one"):
        model.sentence_embedding(TOKENS, pooling="pooler")
    with pytest.raises(ValueError, match=r"pooling: 'maen' is not valid: did you mean 'mean'\?"):
        model.sentence_embedding(TOKENS, pooling="maen")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"model.max_length: 7 is not valid: a sequence has 8 tokens"):
        model(torch.zeros(1, N + 1, dtype=torch.int64))


def test_token_types_and_positions_have_an_effect() -> None:
    model = build()
    types = (torch.arange(N) > 3).long().expand(B, N)
    assert not torch.allclose(model(TOKENS, token_types=types), model(TOKENS))
    assert not torch.allclose(model(TOKENS.flip(1)), model(TOKENS).flip(1))


def test_dropout_draws_from_the_samples_own_numbers() -> None:
    model, rng = build().train(), SampleRandom.at(0, 0, torch.arange(B))
    dropped = model(TOKENS, LENGTHS, rng=rng)
    torch.testing.assert_close(dropped, model(TOKENS, LENGTHS, rng=rng))
    assert not torch.allclose(dropped, model.eval()(TOKENS, LENGTHS, rng=rng))
    streams = [module.stream for module in model.modules() if hasattr(module, "stream")]
    assert len(set(streams)) == len(streams)


def test_depths() -> None:
    model = build()
    depths = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert set(depths.values()) == {0, 1, 2, 3}
    assert depths["token_table.weight"] == depths["norm.weight"] == 0
    assert depths["layers.1.feedforward.fc1.weight"] == 2
    assert depths["pooler.weight"] == model.num_layers == 3
