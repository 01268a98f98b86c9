"""Weights in Hugging Face's BERT layout under our names: BERT, MiniLM, and sentence encoders based on them.

Devlin et al. 2019. Variants (another activation, relative positions, a decoder) are refused by name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.config import BertConfig, check
from vit.libraries.foreign_json import HuggingFaceFile, read_json
from vit.models.text_encoder import TextEncoder
from vit.weights.loader import check_numbers, load_exactly
from vit.weights.report import LoadReport

FIELDS = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "num_heads",
    "intermediate_size": "hidden_width",
    "max_position_embeddings": "max_length",
    "type_vocab_size": "num_token_types",
    "layer_norm_eps": "norm_eps",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
}
"""Keys of `config.json` and our fields."""
REQUIRED: dict[str, tuple[Any, Any]] = {
    "model_type": ("bert", None),
    "hidden_act": ("gelu", None),
    "position_embedding_type": ("absolute", "absolute"),
    "is_decoder": (False, False),
    "add_cross_attention": (False, False),
}
"""Key → the one supported value, and the value of an absent key."""
IGNORED = ("cls.", "classifier.", "qa_outputs.", "embeddings.position_ids")
"""Heads of the pre-training tasks, and a buffer of old files."""
RENAMES = (
    (r"^bert\.", ""),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"^embeddings\.word_embeddings\.", "token_table."),
    (r"^embeddings\.token_type_embeddings\.", "type_table."),
    (r"^embeddings\.position_embeddings\.weight$", "positions.table"),
    (r"^embeddings\.LayerNorm\.", "norm."),
    (r"^encoder\.layer\.", "layers."),
    (r"\.attention\.self\.", ".self_attention."),
    (r"\.attention\.output\.dense\.", ".self_attention.output."),
    (r"\.attention\.output\.LayerNorm\.", ".self_residual.norm."),
    (r"\.intermediate\.dense\.", ".feedforward.fc1."),
    (r"\.output\.dense\.", ".feedforward.fc2."),
    (r"\.output\.LayerNorm\.", ".feedforward_residual.norm."),
    (r"^pooler\.dense\.", "pooler."),
)


def read_bert_config(path: Path, *, pooler: bool) -> BertConfig:
    """Read the architecture from a `config.json`. ValueError naming a key that is not supported."""
    content = read_json(path, HuggingFaceFile)
    for key, (wanted, absent) in REQUIRED.items():
        found = content.get(key, absent)
        check(found == wanted, f"model.pretrained: {path}: {key}", found, f"a BERT text encoder has {wanted!r}")
    missing = [key for key in FIELDS if key not in content]
    if missing:
        raise ValueError(f"model.pretrained: {path} lacks {', '.join(missing)}")
    return BertConfig(**{ours: content[theirs] for theirs, ours in FIELDS.items()}, pooler=pooler)


def has_pooler(source: dict[str, Tensor]) -> bool:
    return any(_rename(name).startswith("pooler.") for name in source)


def from_bert(source: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Translate tensors to our names, and list those that do not belong to the encoder."""
    ignored = [name for name in source if name.removeprefix("bert.").startswith(IGNORED)]
    renamed = {_rename(name): tensor for name, tensor in source.items() if name not in ignored}
    fused = dict(renamed)
    for query in (name for name in renamed if ".self_attention.query." in name):
        parts = [query.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
        if all(name in renamed for name in parts):
            fused[query.replace(".query.", ".qkv.")] = torch.cat([fused.pop(name) for name in parts])
    return fused, ignored


def load_bert(model: TextEncoder, source: dict[str, Tensor], name: str) -> LoadReport:
    """Load Hugging Face's tensors into the model.

    ValueError for a tensor that is unexpected, missing, of another shape, not floating point or not finite.
    """
    report = LoadReport(source=name, num_source=len(source))
    renamed, report.ignored = from_bert(source)
    check_numbers({key: tensor for key, tensor in source.items() if key not in report.ignored}, model, name)
    load_exactly(model, renamed, report)
    return report


def _rename(name: str) -> str:
    for pattern, replacement in RENAMES:
        name = re.sub(pattern, replacement, name)
    return name
