"""The recurrent translators by hand: a GRU cell, one sentence at a time, one step at a time (row 12)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vit.tasks.translation.config import TranslatorConfig
from vit.tasks.translation.recurrent import gru_cell
from vit.tasks.translation.translator import build_translator

B, N, M, C, SOURCE, TARGET = 3, 7, 5, 6, 11, 13
LENGTHS = torch.tensor([7, 2, 5])


def build(**options: Any) -> Any:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"name": "bahdanau", "width": C, "depth": 1}
    config = TranslatorConfig(**(settings | options))
    return build_translator(config, source_vocabulary=SOURCE, target_vocabulary=TARGET).eval().double()


def sentences() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(high, (B, size), generator=generator) for high, size in ((SOURCE, N), (TARGET, M))]


def test_gates_are_torchs_gru_cell() -> None:
    cell = nn.GRUCell(4, C).double()
    inputs, hidden = torch.randn(B, 4).double(), torch.randn(B, C).double()
    from_input = inputs @ cell.weight_ih.T + cell.bias_ih
    from_state = hidden @ cell.weight_hh.T + cell.bias_hh
    torch.testing.assert_close(gru_cell(from_input, from_state, hidden), cell(inputs, hidden))


def maxout(readout: Any, *parts: Tensor) -> Tensor:
    pieces = readout.pieces(torch.cat(parts))
    return torch.maximum(pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :])


def annotations_of(model: Any, sentence: Tensor) -> tuple[Tensor, Tensor]:
    """One unpadded sentence through the encoder's two directions."""
    layer = model.encoder.layers[0]
    states, last = layer(model.tables.source(sentence)[None])
    return states[0], torch.cat((last[0, 0], last[1, 0]))


@pytest.mark.parametrize("score", ["additive", "dot"])
def test_bahdanau_by_hand(score: str) -> None:
    model = build(score=score, hidden_width=4)
    source, target = sentences()
    logits, weights = model(source, LENGTHS, target), model.alignment(source, LENGTHS, target)
    decoder = model.decoder
    for row in range(B):
        annotations, summary = annotations_of(model, source[row, : LENGTHS[row]])
        state = torch.tanh(decoder.first_state(summary))
        for place in range(M):
            vector = model.tables.target(target[row, place])
            query, keys = decoder.alignment.query(state), decoder.alignment.key(annotations)
            scores = torch.tanh(query + keys) @ decoder.alignment.weight if score == "additive" else keys @ query / 2
            expected = scores.softmax(dim=0)
            context = expected @ annotations
            state = gru_cell(
                (decoder.from_token(vector) + decoder.from_context(context))[None],
                decoder.from_state(state)[None],
                state[None],
            )[0]
            torch.testing.assert_close(weights[row, place, : LENGTHS[row]], expected)
            answer = model.tables.logits(maxout(decoder.readout, state, vector, context))
            torch.testing.assert_close(logits[row, place], answer)


def test_plain_decoder_by_hand() -> None:
    model = build(name="rnn")
    source, target = sentences()
    logits = model(source, LENGTHS, target)
    decoder, layer = model.decoder, model.decoder.layers[0]
    for row in range(B):
        _, summary = annotations_of(model, source[row, : LENGTHS[row]])
        context = torch.tanh(decoder.context(summary))
        state = torch.tanh(decoder.first_states(context))
        for place in range(M):
            vector = model.tables.target(target[row, place])
            inputs = torch.cat((vector, context))
            state = gru_cell(
                (layer.weight_ih_l0 @ inputs + layer.bias_ih_l0)[None],
                (layer.weight_hh_l0 @ state + layer.bias_hh_l0)[None],
                state[None],
            )[0]
            answer = model.tables.logits(maxout(decoder.readout, state, vector, context))
            torch.testing.assert_close(logits[row, place], answer)


def test_gradients_equal_those_by_finite_differences() -> None:
    model = build(width=2, hidden_width=3)
    source, target = sentences()
    parameters = [model.decoder.from_context.weight, model.decoder.alignment.key.weight]
    originals = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    names = ["decoder.from_context.weight", "decoder.alignment.key.weight"]

    def loss(*values: Tensor) -> Tensor:
        replaced = dict(zip(names, values, strict=True))
        return torch.func.functional_call(model, replaced, (source, LENGTHS, target)).square().mean()

    assert torch.autograd.gradcheck(loss, originals)


def test_the_plain_one_has_no_alignment() -> None:
    source, target = sentences()
    with pytest.raises(ValueError, match=r"model.name: 'rnn' is not valid: it has no alignment"):
        build(name="rnn").alignment(source, LENGTHS, target)


def test_the_two_have_one_encoder() -> None:
    attentive, plain = (
        {name: tensor.shape for name, tensor in build(name=name).encoder.state_dict().items()}
        for name in ("bahdanau", "rnn")
    )
    assert attentive == plain
