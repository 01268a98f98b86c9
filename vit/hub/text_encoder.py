"""Text encoders of BERT's layout, from Hugging Face or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vit.config import check_arguments
from vit.libraries import transformers as huggingface
from vit.models.text_encoder import TextEncoder
from vit.weights.bert import has_pooler, load_bert, read_bert_config
from vit.weights.extent import check_extent
from vit.weights.files import read_tensors
from vit.weights.report import LoadReport


@dataclass(frozen=True)
class LoadedTextEncoder:
    """A text encoder, and how each of the tensors was used that it was loaded from."""

    model: TextEncoder
    report: LoadReport


@check_arguments
def load_text_encoder(source: str) -> LoadedTextEncoder:
    """A BERT-layout encoder, ready for use: `hf:NAME`, or a folder with `config.json` and `model.safetensors` (or
    `pytorch_model.bin`).

    ValueError for another layout, for weights that do not fit to the last tensor and for what cannot be fetched.
    """
    folder = huggingface.fetch_folder(source.removeprefix("hf:")) if source.startswith("hf:") else Path(source)
    if not folder.is_dir():
        raise ValueError(f"model.pretrained: {source!r} is neither a folder nor 'hf:NAME'")
    files = [folder / name for name in ("model.safetensors", "pytorch_model.bin") if (folder / name).is_file()]
    if not files:
        raise ValueError(f"model.pretrained: {source!r} has neither model.safetensors nor pytorch_model.bin")
    tensors = read_tensors(files[0])
    config = read_bert_config(folder / "config.json", pooler=has_pooler(tensors))
    check_extent(config, tensors, str(folder / "config.json"))
    model = TextEncoder(config)
    return LoadedTextEncoder(model.eval(), load_bert(model, tensors, source))
