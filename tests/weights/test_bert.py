"""Hugging Face's BERT and ours: the same hidden states in every layer (row 14)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vit.hub import load_text_encoder
from vit.weights.bert import read_bert_config

transformers = pytest.importorskip("transformers", reason="needs the extra 'text'")

TINY = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 23,
    "max_position_embeddings": 19,
    "layer_norm_eps": 1e-7,
}
MINILM = {
    "vocab_size": 30522,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
}
LENGTHS = torch.tensor([13, 2, 7])


def saved(folder: Path, kind: str = "BertModel", sizes: dict[str, Any] = TINY, **options: Any) -> nn.Module:
    """A model of transformers with random parameters, saved in a folder."""
    torch.manual_seed(0)
    theirs = getattr(transformers, kind)(transformers.BertConfig(**sizes), **options).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "LayerNorm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(folder)
    return theirs


def batch(vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens, types = (
        torch.randint(vocabulary, (3, 13), generator=generator),
        torch.randint(2, (3, 13), generator=generator),
    )
    return tokens, torch.arange(13) < LENGTHS[:, None], types


def mean_of_real(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("sizes", [TINY, pytest.param(MINILM, marks=pytest.mark.slow)], ids=["tiny", "minilm"])
@torch.no_grad()
def test_hidden_states_of_all_layers_equal_transformers(tmp_path: Path, sizes: dict[str, Any]) -> None:
    theirs = saved(tmp_path, sizes=sizes)
    loaded = load_text_encoder(str(tmp_path))
    tokens, mask, types = batch(sizes["vocab_size"])
    expected = theirs(tokens, attention_mask=mask.long(), token_type_ids=types, output_hidden_states=True)
    actual = loaded.model.hidden_states(tokens, LENGTHS, token_types=types)
    assert len(actual) == len(expected.hidden_states) == sizes["num_hidden_layers"] + 1
    for ours, their in zip(actual, expected.hidden_states, strict=True):
        assert ours.std() > 0.5
        torch.testing.assert_close(ours[mask], their[mask], atol=1e-5, rtol=0)
    pooled = loaded.model.sentence_embedding(tokens, mask=mask, token_types=types, pooling="pooler")
    torch.testing.assert_close(pooled, expected.pooler_output, atol=1e-5, rtol=0)
    mean = loaded.model.sentence_embedding(tokens, LENGTHS, token_types=types)
    torch.testing.assert_close(mean, mean_of_real(expected.last_hidden_state, mask), atol=1e-5, rtol=0)
    assert loaded.report.num_source == len(theirs.state_dict())
    assert loaded.report.unexpected == loaded.report.missing == loaded.report.ignored == []


def test_gradients_equal_transformers(tmp_path: Path) -> None:
    theirs: Any = saved(tmp_path).double()
    ours = load_text_encoder(str(tmp_path)).model.double()
    tokens, mask, types = batch(31)
    ours(tokens, LENGTHS, token_types=types)[mask].square().sum().backward()
    expected = theirs(tokens, attention_mask=mask.long(), token_type_ids=types).last_hidden_state
    expected[mask].square().sum().backward()
    attention = theirs.encoder.layer[0].attention.self
    fused = torch.cat([part.weight.grad for part in (attention.query, attention.key, attention.value)])
    torch.testing.assert_close(ours.get_parameter("layers.0.self_attention.qkv.weight").grad, fused)
    torch.testing.assert_close(ours.token_table.weight.grad, theirs.embeddings.word_embeddings.weight.grad)


def test_a_pretraining_models_heads_are_ignored_and_named(tmp_path: Path) -> None:
    theirs: Any = saved(tmp_path, "BertForMaskedLM")
    loaded = load_text_encoder(str(tmp_path))
    tokens, mask, _ = batch(31)
    with torch.no_grad():
        expected = theirs.bert(tokens, attention_mask=mask.long()).last_hidden_state
        torch.testing.assert_close(loaded.model(tokens, LENGTHS)[mask], expected[mask], atol=1e-5, rtol=0)
    assert loaded.model.pooler is None
    assert loaded.report.ignored
    assert all(name.startswith("cls.") for name in loaded.report.ignored)
    assert f"{len(loaded.report.ignored)} of another head ignored" in loaded.report.summary()


def test_names_of_old_files(tmp_path: Path) -> None:
    saved(tmp_path)
    expected = load_text_encoder(str(tmp_path)).model.state_dict()
    old = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        renamed = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[f"bert.{renamed}"] = tensor
    (tmp_path / "model.safetensors").unlink()
    torch.save(old | {"bert.embeddings.position_ids": torch.arange(19)[None]}, tmp_path / "pytorch_model.bin")
    loaded = load_text_encoder(str(tmp_path))
    assert loaded.report.ignored == ["bert.embeddings.position_ids"]
    torch.testing.assert_close(loaded.model.state_dict(), expected)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu_new"),
        ("hidden_act", "relu"),
        ("position_embedding_type", "relative_key"),
        ("model_type", "distilbert"),
        ("is_decoder", True),
        ("add_cross_attention", True),
    ],
)
def test_another_architecture_is_refused_by_name(tmp_path: Path, key: str, value: bool | str) -> None:
    saved(tmp_path)
    change_config(tmp_path, {key: value})
    with pytest.raises(ValueError, match=rf"config.json: {key}: {value!r} is not valid: a BERT text encoder has "):
        load_text_encoder(str(tmp_path))


def change_config(folder: Path, changes: dict[str, Any]) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def test_every_tensor_must_fit(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "encoder.layer.1.attention.self.key.weight"
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, path)
    with pytest.raises(ValueError, match=r"does not have layers\.1\.self_attention\.qkv\.weight"):
        load_text_encoder(str(tmp_path))
    save_file(tensors | {"encoder.adapter": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"has, and the model does not, encoder\.adapter"):
        load_text_encoder(str(tmp_path))
    save_file(tensors, path)
    change_config(tmp_path, {"vocab_size": 30})
    with pytest.raises(ValueError, match=r"token_table\.weight has shape \(31, 12\), the model's is \(30, 12\)"):
        load_text_encoder(str(tmp_path))


def test_integers_and_nan_are_named_except_position_ids(tmp_path: Path) -> None:
    saved(tmp_path)
    path, key = tmp_path / "model.safetensors", "encoder.layer.1.output.dense.bias"
    whole = load_file(path) | {"embeddings.position_ids": torch.arange(19)[None]}
    save_file(whole, path)
    assert load_text_encoder(str(tmp_path)).report.ignored == ["embeddings.position_ids"]
    for corrupt, expected in (
        (whole[key].int(), "is of the type int32"),
        (whole[key] * torch.nan, "has NaN or infinite values"),
    ):
        save_file(whole | {key: corrupt}, path)
        with pytest.raises(ValueError, match=rf"{key} {expected}"):
            load_text_encoder(str(tmp_path))


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'nowhere' is neither a folder nor 'hf:NAME'"):
        load_text_encoder("nowhere")
    with pytest.raises(ValueError, match=r"has neither model.safetensors nor pytorch_model.bin"):
        load_text_encoder(str(tmp_path))
    saved(tmp_path)
    change_config(tmp_path, {"hidden_size": None})
    with pytest.raises(ValueError, match=r"config.json lacks hidden_size"):
        load_text_encoder(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not JSON"):
        load_text_encoder(str(tmp_path))
    with pytest.raises(ValueError, match=r"there is no file"):
        read_bert_config(tmp_path / "other.json", pooler=True)


def test_a_name_on_the_hub_is_fetched_or_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    saved(tmp_path)
    asked = []

    def fetch(name: str, file: str) -> str:
        asked.append((name, file))
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetch)
    assert load_text_encoder("hf:someone/tiny").report.source == "hf:someone/tiny"
    assert asked == [("someone/tiny", "config.json"), ("someone/tiny", "model.safetensors")]

    def fail(name: str, file: str) -> None:
        raise huggingface_hub.errors.LocalEntryNotFoundError(f"no network\nfor {name} {file}")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(
        ValueError, match=r"'someone/tiny' could not be fetched from the hub \(no network for "
    ) as caught:
        load_text_encoder("hf:someone/tiny")
    assert "\n" not in str(caught.value)
