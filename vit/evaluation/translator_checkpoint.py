"""A trained translator on a test set: its own vocabulary, a beam search, its results stored."""

from __future__ import annotations

import time
from typing import Any

from vit.config import TranslationRun
from vit.data.text import open_test
from vit.data.text_loading import EncodedSplit, TextEvalLoader
from vit.data.vocabulary import Vocabularies
from vit.engine import gather_uneven, make_accelerator
from vit.evaluation.checkpoint import Request
from vit.evaluation.translation import (
    CONVENTIONS,
    bleu,
    bleu_by_length,
    bleu_signature,
    translate_all,
    translation_metrics,
)
from vit.hub import load_translator
from vit.runs import write_json
from vit.settings import check_overrides, override

EDGES = (1, 8, 11, 14, 17, 21, 100)
"""Words of a source sentence, by which sentences are put together."""
_SETTINGS = ("data", "search", "device", "train.precision")


def evaluate_translator(request: Request, trained: TranslationRun) -> dict[str, Any]:
    """Translate the test parts, store translations and metrics, and return the metrics.

    They are `bleu`, its `signature`, `bleu_by_length` and those of `translation_metrics`. ValueError for an option
    about images.
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
    settings = {
        "device": accelerator.device,
        "autocast": accelerator.autocast,
        "gather": lambda values: gather_uneven(accelerator, values),
    }
    search = config.search
    started = time.perf_counter()
    translations = translate_all(
        model,
        loader,
        vocabularies.target,
        max_length=search.max_length,
        beam_size=search.beam_size,
        length_penalty=search.length_penalty if search.beam_size > 1 else 0.0,
        **settings,
    )
    seconds = time.perf_counter() - started
    metrics: dict[str, Any] = {
        "bleu": bleu(translations),
        "signature": bleu_signature(),
        "sentences_per_second": round(len(translations) / max(seconds, 1e-9), 1),
        **translation_metrics(model, loader, **settings),
        "bleu_by_length": [row for row in bleu_by_length(translations, EDGES) if row["sentences"]],
    }
    if accelerator.is_main_process:
        folder = request.folder
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{config.data.name}_{'+'.join(loader.split.text.part_sizes)}_{request.select}_{request.weights}"
        translations.save(folder / f"{stem}.jsonl")
        write_json(folder / f"{stem}.json", metrics | {"conventions": CONVENTIONS})
    accelerator.wait_for_everyone()
    return metrics
