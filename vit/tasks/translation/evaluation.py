"""`vit eval` of a translator: a test set translated, evaluated and stored."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from vit.engine import gather_uneven, make_accelerator, rank_and_world_size
from vit.runs import keep_earlier, write_json
from vit.tasks.earlier import is_repeated
from vit.tasks.task import EvalRequest
from vit.tasks.translation.config import TextDataConfig, TranslationRun
from vit.tasks.translation.loading import EncodedSplit, TextEvalLoader
from vit.tasks.translation.metrics import (
    CONVENTIONS,
    Translations,
    bleu,
    bleu_by_length,
    bleu_signature,
    translate_all,
    translation_metrics,
)
from vit.tasks.translation.text import open_test
from vit.tasks.translation.translator import load_translator

_CAPTIONS = (1, 8, 11, 14, 17, 21, 100)
_SIXTHS = 6


@dataclass(frozen=True)
class TranslatorEvaluation:
    """A translator's translations of test parts, and their metrics."""

    name: str
    """The parts, and which checkpoint and weights."""
    step: int
    """The checkpoint's."""
    translations: Translations
    metrics: dict[str, Any]
    by_length: list[dict[str, float]]
    is_main_process: bool


def length_edges(data: TextDataConfig) -> tuple[int, ...]:
    """Edges of the buckets of source lengths, in words: low ≤ words < high."""
    if data.name != "copying":
        return _CAPTIONS
    low, high = data.copying_lengths
    return tuple(sorted({low + round((high + 1 - low) * part / _SIXTHS) for part in range(_SIXTHS + 1)}))


def evaluate(request: EvalRequest, config: TranslationRun) -> dict[str, Any]:
    """Translate the test parts, store translations and metrics, and return the metrics.

    They are `bleu`, its `signature`, `bleu_by_length` and those of `translation_metrics`; `search` are its settings.
    ValueError for an option about images.
    """
    evaluation = evaluate_translator(request, config)
    metrics = evaluation.metrics | {"search": config.search.arguments}
    if evaluation.is_main_process:
        folder, name = request.folder, evaluation.name
        folder.mkdir(parents=True, exist_ok=True)
        step = {"step": evaluation.step}
        kept = keep_earlier(folder, name, [f"{name}.json", f"{name}.jsonl"], partial(_is_same, step | metrics))
        metrics["notes"] = [f"an earlier evaluation, made otherwise, is kept in {kept}"] if kept else []
        evaluation.translations.save(folder / f"{name}.jsonl")
        path = folder / f"{name}.json"
        write_json(path, step | metrics | {"conventions": CONVENTIONS})
        metrics["file"] = str(path)
    return metrics


def _is_same(record: Mapping[str, Any], before: dict[str, Any]) -> bool:
    """Whether an earlier evaluation searched in the same way and gave the same results, but for rounding."""
    before = {"step": record["step"], **before}  # earlier versions did not store it
    return is_repeated(before, record, equal=("step", "search"), close=("bleu", "perplexity"))


def evaluate_translator(request: EvalRequest, config: TranslationRun) -> TranslatorEvaluation:
    """Translate the test parts and compute the metrics, on as many processes as there are; write nothing.

    ValueError for an option about images.
    """
    asked = {"--image_size": request.image_size, "--transfer": request.transfer, "--dtype": request.dtype != "auto"}
    for option, value in asked.items():
        if value:
            raise ValueError(f"{option}: it has no effect here; the checkpoint is a translator's")
    bleu_signature()  # raises where sacreBLEU is missing, before anything is translated
    trained = load_translator(request.checkpoint, request.select, request.weights)
    vocabularies = trained.vocabularies
    accelerator = make_accelerator(config.device, config.train.precision)
    place = rank_and_world_size(accelerator)
    loader = TextEvalLoader(EncodedSplit.encode(open_test(config.data), vocabularies), config.data, **place)
    model = accelerator.prepare(trained.model)
    settings: dict[str, Any] = {
        "device": accelerator.device,
        "autocast": accelerator.autocast,
        "gather": lambda values: gather_uneven(accelerator, values),
    }
    started = time.perf_counter()
    translations = translate_all(model, loader, vocabularies.target, **config.search.arguments, **settings)
    seconds = time.perf_counter() - started
    by_length = bleu_by_length(translations, length_edges(config.data))
    metrics = {
        "bleu": bleu(translations),
        "signature": bleu_signature(translations.references),
        "sentences_per_second": round(len(translations) / max(seconds, 1e-9), 1),
        **translation_metrics(model, loader, **settings),
        "bleu_by_length": [row for row in by_length if row["sentences"]],
    }
    name = f"{config.data.name}_{'+'.join(loader.split.text.part_sizes)}_{request.chosen}_{request.weights}"
    return TranslatorEvaluation(name, trained.step, translations, metrics, by_length, accelerator.is_main_process)
