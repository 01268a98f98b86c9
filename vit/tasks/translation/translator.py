"""A translator by its configuration, and as a run trained it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vit.config.validation import flatten, make_settings, setting_types
from vit.hub import check_kind, read_run
from vit.models.size import check_fits_memory
from vit.tasks.translation.config import TranslationRun, TranslatorConfig
from vit.tasks.translation.recurrent import RecurrentTranslator
from vit.tasks.translation.text_transformer import TextTransformer
from vit.tasks.translation.vocabulary import Vocabularies

Translator = TextTransformer | RecurrentTranslator


def build_translator(config: TranslatorConfig, *, source_vocabulary: int, target_vocabulary: int) -> Translator:
    """`b n, b m -> b m vocabulary`, with first values from torch's generator.

    ValueError for `model.share_embeddings` with two vocabularies of different sizes, and for a model that this
    machine's memory cannot hold.
    """
    layers = (config.depth + config.decoder_layers) * 4 * config.width**2
    hidden = 2 * config.width * (config.hidden_width or config.width)
    tokens = f"{source_vocabulary} tokens"
    check_fits_memory(layers + hidden + config.width * source_vocabulary, f"model.width {config.width} with {tokens}")
    if config.name == "transformer":
        return TextTransformer(config, source_vocabulary, target_vocabulary)
    return RecurrentTranslator(config, source_vocabulary, target_vocabulary)


@dataclass(frozen=True)
class TrainedTranslator:
    model: Translator
    vocabularies: Vocabularies
    config: TranslationRun
    step: int
    """The number of optimizer steps that trained it."""


def load_translator(path: Path, select: str = "best", weights: str = "auto") -> TrainedTranslator:
    """A run's translator as it was trained; `select` and `weights` as in `open_model`."""
    tensors, state = read_run(path, select, weights)
    check_kind(path, state["task"]["model"]["kind"], ("translator",))
    known = setting_types(TranslationRun)  # runs of earlier versions have settings that only other tasks have now
    config = make_settings(TranslationRun, {k: v for k, v in flatten(state["config"]).items() if k in known})
    vocabularies = Vocabularies.from_json(state["task"]["vocabularies"])
    model = build_translator(
        config.model, source_vocabulary=len(vocabularies.source), target_vocabulary=len(vocabularies.target)
    )
    model.load_state_dict(tensors)
    return TrainedTranslator(model, vocabularies, config, state["progress"]["step"])
