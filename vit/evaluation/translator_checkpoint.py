"""A trained translator on a test set: its own vocabulary, a beam search, its results stored."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from torch import nn

from vit.config import SearchConfig, TextDataConfig, TranslationRun
from vit.data.text import open_test
from vit.data.text_loading import EncodedSplit, TextEvalLoader
from vit.data.vocabulary import Vocabularies
from vit.engine import gather_uneven, make_accelerator
from vit.evaluation.checkpoint import Request
from vit.evaluation.translation import (
    CONVENTIONS,
    Translations,
    bleu,
    bleu_by_length,
    bleu_signature,
    translate_all,
    translation_metrics,
)
from vit.hub import load_translator
from vit.runs import write_json
from vit.settings import check_overrides, override

_CAPTIONS = (1, 8, 11, 14, 17, 21, 100)
_SIXTHS = 6
_SETTINGS = ("data", "search", "device", "train.precision")


@dataclass(frozen=True)
class JudgedTranslator:
    """A translator's work on test parts, and what it is worth."""

    name: str
    """The parts, and which checkpoint and weights."""
    translations: Translations
    metrics: dict[str, Any]
    by_length: list[dict[str, float]]
    is_main_process: bool


def length_edges(data: TextDataConfig) -> tuple[int, ...]:
    """Numbers of words of a source by which sentences are put together: low ≤ words < high."""
    if data.name != "copying":
        return _CAPTIONS
    low, high = data.copying_lengths
    return tuple(sorted({low + round((high + 1 - low) * part / _SIXTHS) for part in range(_SIXTHS + 1)}))


def evaluate_translator(request: Request, trained: TranslationRun) -> dict[str, Any]:
    """Translate the test parts, store translations and metrics, and return the metrics.

    They are `bleu`, its `signature`, `bleu_by_length` and those of `translation_metrics`. ValueError for an option
    about images.
    """
    judged = judge_translator(request, trained)
    if judged.is_main_process:
        folder = request.folder
        folder.mkdir(parents=True, exist_ok=True)
        judged.translations.save(folder / f"{judged.name}.jsonl")
        write_json(folder / f"{judged.name}.json", judged.metrics | {"conventions": CONVENTIONS})
    return judged.metrics


def judge_translator(request: Request, trained: TranslationRun) -> JudgedTranslator:
    """Translate the test parts and judge the translations, on as many processes as there are; nothing is written.

    ValueError for an option about images.
    """
    for option, value in (("--image_size", request.image_size), ("--transfer", request.transfer)):
        if value:
            raise ValueError(f"{option}: it has no effect here; the checkpoint is a translator's")
    check_overrides(trained, request.overrides, _SETTINGS, {})
    config = override(trained, request.overrides)
    assert isinstance(config, TranslationRun)
    model, state = load_translator(request.checkpoint, request.select, request.weights)
    vocabularies = Vocabularies.from_json(state["task"]["vocabularies"])
    accelerator = make_accelerator(config.device, config.train.precision)
    place = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    loader = TextEvalLoader(EncodedSplit.encode(open_test(config.data), vocabularies), config.data, **place)
    model = accelerator.prepare(model)
    settings: dict[str, Any] = {
        "device": accelerator.device,
        "autocast": accelerator.autocast,
        "gather": lambda values: gather_uneven(accelerator, values),
    }
    started = time.perf_counter()
    translations = _translate(model, loader, vocabularies, config.search, settings)
    seconds = time.perf_counter() - started
    by_length = bleu_by_length(translations, length_edges(config.data))
    metrics = {
        "bleu": bleu(translations),
        "signature": bleu_signature(),
        "sentences_per_second": round(len(translations) / max(seconds, 1e-9), 1),
        **translation_metrics(model, loader, **settings),
        "bleu_by_length": [row for row in by_length if row["sentences"]],
    }
    name = f"{config.data.name}_{'+'.join(loader.split.text.part_sizes)}_{request.select}_{request.weights}"
    return JudgedTranslator(name, translations, metrics, by_length, accelerator.is_main_process)


def _translate(
    model: nn.Module, loader: TextEvalLoader, vocabularies: Vocabularies, search: SearchConfig, settings: dict[str, Any]
) -> Translations:
    return translate_all(
        model,
        loader,
        vocabularies.target,
        max_length=search.max_length,
        beam_size=search.beam_size,
        length_penalty=search.length_penalty if search.beam_size > 1 else 0.0,
        **settings,
    )
