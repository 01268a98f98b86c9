"""Sentences through a trained translator, and the picture of where it looked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.config import SearchConfig, TranslationRun
from vit.data.text_loading import encode_sources, pad
from vit.data.vocabulary import BOS, EOS, Vocabularies
from vit.engine import make_accelerator
from vit.figures.alignment import alignment
from vit.figures.style import save_figure
from vit.hub import load_translator
from vit.models.recurrent import RecurrentTranslator
from vit.models.search import beam, greedy
from vit.models.translator import Translator
from vit.settings import run_config_from


@dataclass(frozen=True)
class Translated:
    """A sentence's translation; where the model looked, (m, n), a row for each of its m tokens, EOS the last."""

    text: str
    weights: Tensor | None
    source_tokens: list[str]
    target_tokens: list[str]


def translate(
    checkpoint: Path, sentences: Sequence[str], beam_size: int | None = None, device: str = "auto"
) -> list[Translated]:
    """Every sentence's translation, searched for as the run was tested, with another `beam_size` where it is given.

    A model without attention (`rnn`) has no weights. ValueError: no translator.
    """
    model, state = load_translator(checkpoint)
    search = _search(state["config"], beam_size)
    vocabularies = Vocabularies.from_json(state["task"]["vocabularies"])
    place = make_accelerator(device, "fp32").device
    model = model.to(place).eval()
    return [_translate(model, vocabularies, sentence, search, place) for sentence in sentences]


def _search(trained: dict[str, Any], beam_size: int | None) -> SearchConfig:
    config = run_config_from(trained)
    assert isinstance(config, TranslationRun)
    search = config.search
    if beam_size is None or beam_size == search.beam_size:
        return search
    if beam_size == 1 or search.beam_size == 1:  # a penalty has no effect without a beam: the default's
        return SearchConfig(beam_size=beam_size, max_length=search.max_length)
    return replace(search, beam_size=beam_size)


@torch.inference_mode()
def _translate(
    model: Translator, vocabularies: Vocabularies, sentence: str, search: SearchConfig, device: torch.device
) -> Translated:
    if not sentence.strip():
        raise ValueError("sentence: '' is not valid: there is nothing to translate")
    source, lengths = (tensor.to(device) for tensor in pad(encode_sources(vocabularies.source, [sentence])))
    limits: dict[str, Any] = {"bos": BOS, "eos": EOS, "max_length": search.max_length}
    decodable: Any = model  # one of two kinds, each with a memory and a state of its own
    if search.beam_size == 1:
        (found,) = greedy(decodable, source, lengths, **limits)
    else:
        options: dict[str, Any] = {"beam_size": search.beam_size, "length_penalty": search.length_penalty}
        (found,) = beam(decodable, source, lengths, **limits, **options)
    weights = None
    if not (isinstance(model, RecurrentTranslator) and model.config.name == "rnn"):
        weights = model.alignment(source, lengths, torch.tensor([[BOS, *found]], device=device))[0].cpu()
    return Translated(
        vocabularies.target.decode(found),
        weights,
        vocabularies.source.pieces(source[0].tolist()),
        vocabularies.target.pieces([*found, EOS]),
    )


def draw_alignment(translated: Translated, path: Path) -> None:
    """Where the model looked as a PNG, its numbers beside it. ValueError for a model without attention."""
    if translated.weights is None:
        raise ValueError("--figure: this model has no alignment to draw; 'bahdanau' and 'transformer' have")
    numbers = {
        "weights": translated.weights.tolist(),
        "source": translated.source_tokens,
        "target": translated.target_tokens,
        "conventions": "weights (m, n): of target token m on source token n, rows sum to 1; of a Transformer the mean "
        "over the heads of the last decoder layer",
    }
    figure = alignment(translated.weights.numpy(), translated.source_tokens, translated.target_tokens)
    save_figure(figure, path, numbers)
