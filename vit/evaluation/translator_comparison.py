"""Translators beside each other on the same sentences: BLEU, paired differences, and BLEU by the source's length.

Paired bootstrap: Koehn 2004, "Statistical significance tests for machine translation evaluation".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from tqdm import tqdm

from vit.config import TranslationRun
from vit.evaluation.checkpoint import Request
from vit.evaluation.translation import CONVENTIONS, bootstrap_difference, sentence_statistics
from vit.evaluation.translator_checkpoint import JudgedTranslator, judge_translator
from vit.figures.bleu_by_length import MOST_MODELS
from vit.figures.bleu_by_length import bleu_by_length as draw_bleu_by_length
from vit.figures.style import save_figure
from vit.runs import find_checkpoint, read_checkpoint, write_json
from vit.settings import run_config_from


def compare_translators(
    runs: Sequence[Path], overrides: Sequence[str], output_dir: Path, select: str = "best"
) -> dict[str, Any]:
    """Judge the runs on the same test parts, write translations, numbers and a figure, and return the numbers.

    ValueError where a run is no translator's, or where two runs have one name or other sentences.
    """
    names = [run.resolve().name for run in runs]
    if len(runs) > MOST_MODELS:
        raise ValueError(f"compare: {len(runs)} models are not valid: a picture holds at most {MOST_MODELS}")
    if len(set(names)) < len(names):
        raise ValueError(f"compare: {', '.join(names)} is not valid: the folders' names are the models' names")
    judged = {name: _judge(run, overrides, select) for name, run in zip(names, tqdm(runs, disable=None), strict=True)}
    sentences = {name: (each.translations.sources, each.translations.references) for name, each in judged.items()}
    for name, pair in sentences.items():
        if pair != sentences[names[0]]:
            raise ValueError(f"compare: {name!r} has other test sentences than {names[0]!r}")
    result = _result(judged)
    output_dir.mkdir(parents=True, exist_ok=True)
    for name, each in judged.items():
        each.translations.save(output_dir / f"{name}.jsonl")
    write_json(output_dir / "comparison.json", result)
    kept = [place for place, row in enumerate(judged[names[0]].by_length) if row["sentences"]]
    rows = {name: [each.by_length[place] for place in kept] for name, each in judged.items()}
    save_figure(
        draw_bleu_by_length(rows), output_dir / "bleu_by_length.png", {"rows": rows, "conventions": CONVENTIONS}
    )
    return result


def _judge(run: Path, overrides: Sequence[str], select: str) -> JudgedTranslator:
    trained = run_config_from(read_checkpoint(find_checkpoint(run, select), []).state["config"])
    if not isinstance(trained, TranslationRun):
        raise ValueError(f"compare: {str(run)!r} is not valid beside translators: it is a run of task {trained.task!r}")
    return judge_translator(Request(checkpoint=run, select=select, overrides=overrides), trained)


def _result(judged: dict[str, JudgedTranslator]) -> dict[str, Any]:
    pairs = [_difference(*pair) for pair in combinations(judged.items(), 2)]
    models = {name: each.metrics for name, each in judged.items()}
    return {"models": models, "differences": pairs, "conventions": CONVENTIONS}


def _difference(ours: tuple[str, JudgedTranslator], theirs: tuple[str, JudgedTranslator]) -> dict[str, Any]:
    (our_name, our), (their_name, their) = ours, theirs
    statistics = [sentence_statistics(each.translations) for each in (our, their)]
    lower, upper = bootstrap_difference(*statistics)
    bleu = our.metrics["bleu"] - their.metrics["bleu"]
    return {"of": our_name, "minus": their_name, "bleu": bleu, "lower": lower, "upper": upper}
