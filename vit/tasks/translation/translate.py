"""`vit translate`: sentences through a trained translator, and a figure of its alignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vit.engine import make_accelerator
from vit.figures.alignment import plot_alignment
from vit.figures.style import save_figure
from vit.tasks.translation.config import SearchConfig
from vit.tasks.translation.loading import encode_sources, pad
from vit.tasks.translation.metrics import find_search
from vit.tasks.translation.recurrent import RecurrentTranslator
from vit.tasks.translation.text import LONGEST_LINE
from vit.tasks.translation.translator import Translator, load_translator
from vit.tasks.translation.vocabulary import BOS, EOS, Vocabularies


@dataclass(frozen=True)
class Translated:
    """A sentence's translation, with the alignment `weights` (m, n): a row for each of its m tokens, EOS the last."""

    text: str
    weights: Tensor | None
    source_tokens: list[str]
    target_tokens: list[str]


def translate(
    checkpoint: Path, sentences: Sequence[str], beam_size: int | None = None, device: str = "auto"
) -> list[Translated]:
    """Every sentence's translation, searched for as in the run's test or with another `beam_size`.

    A model without attention (`rnn`) has no weights. ValueError for a run that is no translator's.
    """
    trained = load_translator(checkpoint)
    search = _with_beam(trained.config.search, beam_size)
    place = make_accelerator(device, "fp32").device
    model = trained.model.to(place).eval()
    return [_translate_sentence(model, trained.vocabularies, sentence, search, place) for sentence in sentences]


def _with_beam(search: SearchConfig, beam_size: int | None) -> SearchConfig:
    if beam_size is None or beam_size == search.beam_size:
        return search
    if beam_size == 1 or search.beam_size == 1:  # the penalty of a search without a beam has no effect
        return SearchConfig(beam_size=beam_size, max_length=search.max_length)
    return replace(search, beam_size=beam_size)


@torch.inference_mode()
def _translate_sentence(
    model: Translator, vocabularies: Vocabularies, sentence: str, search: SearchConfig, device: torch.device
) -> Translated:
    if not sentence.strip():
        raise ValueError("sentence: '' is not valid: there is nothing to translate")
    if not sentence.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in sentence):
        # how Python writes bytes of the command line that are no UTF-8
        raise ValueError(f"sentence: {sentence[:20]!r} is not valid: it is not text in UTF-8")
    if len(sentence) > LONGEST_LINE:
        raise ValueError(
            f"sentence: {sentence[:20]!r}… has {len(sentence):,} characters; at most {LONGEST_LINE:,} are translated "
            "as one sentence: divide it"
        )
    source, lengths = (tensor.to(device) for tensor in pad(encode_sources(vocabularies.source, [sentence])))
    (found,) = find_search(**search.arguments)(model, source, lengths)
    weights, longest = None, search.max_length  # at which the search ends without the end-of-sentence token
    if not (isinstance(model, RecurrentTranslator) and model.config.name == "rnn"):
        weights = model.alignment(source, lengths, torch.tensor([[BOS, *found][:longest]], device=device))[0].cpu()
    return Translated(
        vocabularies.target.decode(found),
        weights,
        vocabularies.source.pieces(source[0].tolist()),
        vocabularies.target.pieces([*found, EOS][:longest]),
    )


def draw_alignment(translated: Translated, path: Path) -> None:
    """Draw the alignment as a PNG, with its numbers beside it. ValueError for a model without attention."""
    if translated.weights is None:
        raise ValueError("--figure: this model has no alignment to draw; 'bahdanau' and 'transformer' have")
    numbers = {
        "weights": translated.weights.tolist(),
        "source": translated.source_tokens,
        "target": translated.target_tokens,
        "conventions": "weights (m, n): of target token m on source token n, rows sum to 1; of a Transformer the mean "
        "over the heads of the last decoder layer",
    }
    figure = plot_alignment(translated.weights.numpy(), translated.source_tokens, translated.target_tokens)
    save_figure(figure, path, numbers)
