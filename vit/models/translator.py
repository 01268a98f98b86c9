"""A translator by its configuration."""

from __future__ import annotations

from vit.config import TranslatorConfig
from vit.models.recurrent import RecurrentTranslator
from vit.models.text_transformer import TextTransformer

Translator = TextTransformer | RecurrentTranslator


def build_translator(config: TranslatorConfig, *, source_vocabulary: int, target_vocabulary: int) -> Translator:
    """`b n, b m -> b m vocabulary`, with first values from torch's generator.

    ValueError for `model.share_embeddings` with two vocabularies of different sizes.
    """
    if config.name == "transformer":
        return TextTransformer(config, source_vocabulary, target_vocabulary)
    return RecurrentTranslator(config, source_vocabulary, target_vocabulary)
