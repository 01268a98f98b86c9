"""The Transformer encoder–decoder against torch's, and its properties (rows 11 and 13)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.layers.test_text_layers import copy_layer
from vit.randomness import SampleRandom
from vit.tasks.translation.config import TranslatorConfig
from vit.tasks.translation.translator import build_translator

B, N, M, SOURCE, TARGET = 3, 7, 5, 11, 13
LENGTHS = torch.tensor([7, 2, 5])


def build(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    config = TranslatorConfig(**{"width": 12, "depth": 2, "num_heads": 3, "hidden_width": 17} | options)
    return build_translator(config, source_vocabulary=SOURCE, target_vocabulary=TARGET).eval()


def sentences(seed: int = 0) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(high, (B, size), generator=generator) for high, size in ((SOURCE, N), (TARGET, M)))


def theirs_with_our_tables(ours: Any, norm: str) -> Any:
    """torch's stacks without its final norms where ours has none, on our embeddings."""
    options: dict[str, Any] = {"dim_feedforward": 17, "dropout": 0.0, "batch_first": True, "norm_first": norm == "pre"}
    ends = [nn.LayerNorm(12) if norm == "pre" else None for _ in range(2)]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(12, 3, **options), 2, ends[0], enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 3, **options), 2, ends[1])
    theirs = nn.Transformer(12, 3, custom_encoder=encoder, custom_decoder=decoder, batch_first=True).double()
    for our_layers, their_layers in ((ours.encoder, encoder.layers), (ours.decoder, decoder.layers)):
        for our_layer, their_layer in zip(our_layers, their_layers, strict=True):
            copy_layer(our_layer, their_layer)
    for our_norm, their_norm in zip((ours.encoder_norm, ours.decoder_norm), ends, strict=True):
        if their_norm is not None:
            nn.init.normal_(our_norm.weight)
            their_norm.load_state_dict(our_norm.state_dict())
    return theirs


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_equal_to_torch_forward_and_gradient(norm: str) -> None:
    ours = build(norm=norm, dropout_rate=0.0).double().train()
    theirs = theirs_with_our_tables(ours, norm)
    source, target = sentences()
    padded = torch.arange(N) >= LENGTHS[:, None]
    actual = ours(source, LENGTHS, target)
    actual.square().sum().backward()
    tables = ours.tables.source_table.weight, ours.tables.target_table.weight
    gradients = [table.grad.clone() for table in tables]
    ours.zero_grad()
    expected = theirs(
        ours.source_positions(ours.tables.source(source)),
        ours.target_positions(ours.tables.target(target)),
        tgt_mask=torch.ones(M, M).triu(1).bool(),
        src_key_padding_mask=padded,
        memory_key_padding_mask=padded,
    )
    expected = expected @ tables[1].T
    torch.testing.assert_close(actual, expected)
    expected.square().sum().backward()
    for table, gradient in zip(tables, gradients, strict=True):
        torch.testing.assert_close(gradient, table.grad)


def test_the_papers_base_model_counts_what_torchs_does() -> None:
    config = TranslatorConfig(
        width=512, depth=6, num_heads=8, hidden_width=2048, norm="post", share_embeddings=True, tie_output=True
    )
    with torch.device("meta"):
        theirs = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
    ours = build_translator(config, source_vocabulary=37_000, target_vocabulary=37_000)
    count = sum(p.numel() for p in ours.parameters())
    final_norms = 2 * 2 * 512  # torch has them after a post-norm stack too, the paper does not
    assert count == sum(p.numel() for p in theirs.parameters()) - final_norms + 37_000 * 512 == 63_082_496


STEPPED: list[dict[str, Any]] = [
    {},
    {"norm": "post", "positions": "learned", "share_embeddings": False},
    {"positions": "rope", "num_heads": 2},
    {"positions": "none", "decoder_depth": 1, "tie_output": False},
    {"name": "rnn", "depth": 1},
    {"name": "rnn", "decoder_depth": 3},
    {"name": "bahdanau", "depth": 1},
    {"name": "bahdanau", "score": "dot"},
]


def any_model(options: dict[str, Any]) -> Any:
    of_transformer = {} if "name" in options else {"num_heads": 3, "hidden_width": 17}
    torch.manual_seed(0)
    config = TranslatorConfig(**{"width": 12, "depth": 2} | of_transformer | options)
    return build_translator(config, source_vocabulary=SOURCE, target_vocabulary=TARGET).eval()


@pytest.mark.parametrize("options", STEPPED)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@torch.no_grad()
def test_stepping_equals_reading_the_whole_target(
    options: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    model = any_model(options).to(dtype)
    source, target = sentences()
    whole = model(source, LENGTHS, target)
    state = model.start(model.encode(source, LENGTHS))
    for place in range(M):
        logits, state = model.step(target[:, place], state)
        torch.testing.assert_close(logits, whole[:, place], atol=tolerance, rtol=0)


@pytest.mark.parametrize("options", STEPPED)
@torch.no_grad()
def test_stepping_equals_the_whole_also_after_reordering(options: dict[str, Any]) -> None:
    """Rows are moved, repeated and left out in mid-sentence; each goes on as the row it was."""
    model = any_model(options).double()
    source, target = sentences()
    rows = torch.tensor([2, 0, 0, 2])
    moved = torch.cat((target[rows, :2], torch.randint(TARGET, (4, M - 2))), dim=1)
    whole = model(source[rows], LENGTHS[rows], moved)
    state = model.start(model.encode(source, LENGTHS))
    for place in range(2):
        _, state = model.step(target[:, place], state)
    state.reorder(rows)
    swapped = torch.tensor([1, 0, 3, 2])
    for place in range(2, M):
        if place == 3:
            state.reorder(swapped)  # rows change places, and two of them sentences
            moved, whole = moved[swapped], whole[swapped]
        logits, state = model.step(moved[:, place], state)
        torch.testing.assert_close(logits, whole[:, place], atol=1e-10, rtol=0)


@pytest.mark.parametrize("options", STEPPED)
@torch.no_grad()
def test_padding_is_irrelevant_and_the_future_unseen(options: dict[str, Any]) -> None:
    model = any_model(options).double()
    source, target = sentences()
    logits = model(source, LENGTHS, target)
    padded = torch.arange(N) >= LENGTHS[:, None]
    torch.testing.assert_close(model(source.masked_fill(padded, 1), LENGTHS, target), logits)
    torch.testing.assert_close(model(source[1:2, :2], LENGTHS[1:2], target[1:2]), logits[1:2])
    later = target.clone()
    later[:, 3:] = (later[:, 3:] + 1) % TARGET
    changed = model(source, LENGTHS, later)
    torch.testing.assert_close(changed[:, :3], logits[:, :3])
    assert not torch.allclose(changed[:, 3:], logits[:, 3:])


@pytest.mark.parametrize("options", [options for options in STEPPED if options.get("name") != "rnn"])
@torch.no_grad()
def test_alignment_is_a_distribution_over_the_real_tokens(options: dict[str, Any]) -> None:
    model = any_model(options).double()
    source, target = sentences()
    weights = model.alignment(source, LENGTHS, target)
    assert weights.shape == (B, M, N)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(B, M).double())
    assert weights.masked_select((torch.arange(N) >= LENGTHS[:, None])[:, None]).abs().max() == 0
    assert weights[0].std() > 0


@pytest.mark.parametrize("options", [{}, {"norm": "post"}, {"positions": "rope", "num_heads": 2}])
@torch.no_grad()
def test_alignment_is_what_the_last_layer_attends_to(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(**options).double()
    source, target = sentences()
    expected = model.alignment(source, LENGTHS, target)
    cross = model.decoder[-1].cross_attention
    scale = (12 / cross.num_heads) ** -0.5
    seen = []
    monkeypatch.setattr(
        cross,
        "attend_to",
        lambda queries, read, mask, rng: (  # noqa: ARG005
            seen.append((cross._heads(cross.query(queries)) @ read[0].mT * scale).masked_fill(~mask, -torch.inf))
            or queries
        ),
    )
    model(source, LENGTHS, target)
    torch.testing.assert_close(seen[0].softmax(dim=-1).mean(dim=1), expected)


@pytest.mark.parametrize("options", STEPPED)
def test_dropout_is_the_samples_own(options: dict[str, Any]) -> None:
    model = any_model({**options, "dropout_rate": 0.4}).train()
    source, target = sentences()
    whole = model(source, LENGTHS, target, rng=SampleRandom.at(0, 0, torch.arange(B)))
    part = model(source[1:], LENGTHS[1:], target[1:], rng=SampleRandom.at(0, 0, torch.arange(1, B)))
    torch.testing.assert_close(whole[1:], part, atol=1e-4, rtol=1e-4)
    other = model(source, LENGTHS, target, rng=SampleRandom.at(1, 0, torch.arange(B)))
    assert not torch.allclose(whole, other)
    assert not torch.allclose(whole, model.eval()(source, LENGTHS, target))
    streams = [module.stream for module in model.modules() if hasattr(module, "stream")]
    assert len(set(streams)) == len(streams)


@pytest.mark.parametrize("options", STEPPED)
def test_every_parameter_learns_and_has_a_depth(options: dict[str, Any]) -> None:
    model = any_model(options)
    model.train()(*arguments()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert 0 <= model.layer_of(name) <= model.num_layers
    depths = {model.layer_of(name) for name, _ in model.named_parameters()}
    assert depths >= set(range(model.num_layers))
    assert "tables.source_table.weight" in model.no_weight_decay()


def test_an_outputs_own_matrix_is_decayed() -> None:
    config = TranslatorConfig(width=8, depth=1, num_heads=2, positions="learned", max_length=8, tie_output=False)
    exempt = build_translator(config, source_vocabulary=9, target_vocabulary=9).no_weight_decay()
    assert "tables.output.weight" not in exempt
    assert {"tables.target_table.weight", "source_positions.table"} <= exempt


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    source, target = sentences()
    return source, LENGTHS, target


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ({}, {"norm": "post"}),
        ({}, {"activation": "gelu"}),
        ({}, {"positions": "none"}),
        ({"num_heads": 2}, {"positions": "rope"}),
        ({}, {"num_heads": 4}),
        ({}, {"depth": 1}),
        ({}, {"decoder_depth": 1}),
        ({}, {"hidden_width": 18}),
        ({}, {"tie_output": False}),
        ({"name": "bahdanau"}, {"score": "dot"}),
        ({"name": "bahdanau"}, {"name": "rnn"}),
        ({"name": "bahdanau"}, {"hidden_width": 5}),
        ({"name": "rnn"}, {"decoder_depth": 1}),
    ],
)
def test_every_setting_moves_something(base: dict[str, Any], change: dict[str, Any]) -> None:
    first, second = any_model(base), any_model(base | change)
    assert not torch.allclose(first(*arguments()), second(*arguments()))


def test_shared_tables_need_one_vocabulary() -> None:
    with pytest.raises(ValueError, match=r"model.share_embeddings: True is not valid"):
        build(share_embeddings=True)


def test_a_decoder_past_its_learned_positions_says_so() -> None:
    model = build(positions="learned", max_length=3)
    source, target = sentences()
    with pytest.raises(ValueError, match=r"model.max_length: 3 is not valid: a sequence has 7 tokens"):
        model(source, LENGTHS, target)
