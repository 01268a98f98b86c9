"""Attention of text models: rows, masks, parity with the models' own alignment, statistics by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from vit.analysis.text_attention import encoder_attention, text_attention_statistics
from vit.config import BertConfig
from vit.models.text_encoder import TextEncoder
from vit.tasks.translation.analysis import translator_attention
from vit.tasks.translation.config import TranslatorConfig
from vit.tasks.translation.translator import build_translator

SOURCE, TARGET = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 4))
SOURCE_LENGTHS, TARGET_LENGTHS = torch.tensor([5, 3]), torch.tensor([2, 4])


def translator(name: Any) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = (
        {"width": 16, "depth": 2, "decoder_depth": 2} if name == "transformer" else {"width": 16, "depth": 1}
    )
    options: dict[str, Any] = {"num_heads": 2} if name == "transformer" else {}
    config = TranslatorConfig(name=name, **sizes, **options)
    return build_translator(config, source_vocabulary=20, target_vocabulary=20).eval()


def test_a_transformer_has_three_kinds() -> None:
    model = translator("transformer")
    found = translator_attention(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    assert {kind: tuple(maps.shape) for kind, maps in found.maps.items()} == {
        "cross": (2, 2, 2, 4, 5),
        "encoder": (2, 2, 2, 5, 5),
        "decoder": (2, 2, 2, 4, 4),
    }
    for maps in found.maps.values():
        torch.testing.assert_close(maps.sum(dim=-1), torch.ones_like(maps[..., 0]))
    assert float(found.maps["decoder"].triu(1).abs().max()) == 0, "nothing of the future"
    assert float(found.maps["cross"][:, 1, :, :, 3:].abs().max()) == 0, "nothing of padding"
    expected = model.alignment(SOURCE, SOURCE_LENGTHS, TARGET)
    torch.testing.assert_close(found.maps["cross"][-1].mean(dim=1), expected)
    assert not any(module._forward_hooks for module in model.modules())


def test_bahdanaus_alignment_is_the_models_and_a_model_without_one_is_refused() -> None:
    model = translator("bahdanau")
    found = translator_attention(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    torch.testing.assert_close(found.maps["alignment"][0, :, 0], model.alignment(SOURCE, SOURCE_LENGTHS, TARGET))
    assert set(found.numbers()["alignment"]) == {"entropy", "first_mass", "last_mass"}
    with pytest.raises(ValueError, match="it has no alignment"):
        translator_attention(translator("rnn"), SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)


def test_an_encoder() -> None:
    config = BertConfig(vocabulary_size=20, width=16, depth=2, num_heads=2, hidden_width=8, max_length=8)
    found = encoder_attention(TextEncoder(config), SOURCE, SOURCE_LENGTHS)
    assert tuple(found.maps["encoder"].shape) == (2, 2, 2, 5, 5)
    assert float(found.maps["encoder"][:, 1, :, :, 3:].abs().max()) == 0


def test_statistics_by_hand() -> None:
    uniform = torch.zeros(1, 1, 1, 4, 4)
    uniform[..., :3] = 1 / 3  # three real tokens
    found = text_attention_statistics(uniform, torch.tensor([3]), torch.tensor([3]), kind="encoder")
    expected = {"entropy": math.log(3), "first_mass": 1 / 3, "last_mass": 1 / 3, "self_mass": 1 / 3}
    expected["distance"] = (3 + 2 + 3) / 3 / 3  # from the places 0, 1, 2: 0+1+2, 1+0+1, 2+1+0
    assert {name: float(values) for name, values in found.items()} == pytest.approx(expected)


def test_cross_attention_that_computes_something_else_is_named() -> None:
    model = translator("transformer")
    module = model.decoder[1].cross_attention

    def evenly(queries: Tensor, keys_and_values: tuple[Tensor, Tensor], **_: Any) -> Tensor:
        value = keys_and_values[1]
        even = value.mean(dim=2, keepdim=True).expand(-1, -1, queries.shape[1], -1)
        return module.output(even.transpose(1, 2).flatten(2))

    module.attend_to = evenly
    with pytest.raises(ValueError, match=r"1\.cross_attention is not valid: the output rebuilt"):
        translator_attention(model, SOURCE, SOURCE_LENGTHS, TARGET, TARGET_LENGTHS)
    assert module.__dict__["attend_to"] is evenly
    assert "attend_to" not in model.decoder[0].cross_attention.__dict__
