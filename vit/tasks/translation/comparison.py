"""Translators beside each other on the same sentences: BLEU, paired differences, and BLEU by the source's length.

Paired bootstrap: Koehn 2004, "Statistical significance tests for machine translation evaluation".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from vit.comparison.report import put_report_aside
from vit.config import RunConfig, check
from vit.figures.bleu_by_length import MOST_MODELS, plot_bleu_by_length
from vit.figures.style import save_figure
from vit.progress import tracked
from vit.runs import write_json
from vit.tasks.task import EvalRequest
from vit.tasks.translation.config import TranslationRun
from vit.tasks.translation.evaluation import TranslatorEvaluation, evaluate_translator
from vit.tasks.translation.metrics import CONVENTIONS, bootstrap_difference, sentence_statistics

_FIGURE = "bleu_by_length"


def compare_runs(
    runs: Sequence[Path],
    config_of: Callable[[Path], RunConfig],
    output_dir: Path,
    select: Literal["best", "last"] = "best",
    leaky: bool = False,
) -> list[str]:
    """Evaluate translators' runs on the same test parts; write translations, numbers and a figure.

    `config_of` gives the settings of a run. Returns lines for the terminal. ValueError where two have one name or other
    sentences.
    """
    check(not leaky, "--leaky", leaky, "it has an effect on runs of images only")
    names = [run.resolve().name for run in runs]
    if len(runs) > MOST_MODELS:
        raise ValueError(f"compare: {len(runs)} models are not valid: a picture holds at most {MOST_MODELS}")
    if len(set(names)) < len(names):
        raise ValueError(f"compare: {', '.join(names)} is not valid: the folders' names are the models' names")
    evaluations: dict[str, TranslatorEvaluation] = {}
    for name, run in zip(names, tracked(runs, "translating", len(runs), unit="model"), strict=True):
        config = config_of(run)
        assert isinstance(config, TranslationRun), "every run is one of this task"
        evaluations[name] = evaluate_translator(EvalRequest(checkpoint=run, select=select), config)
    first = evaluations[names[0]]
    for name, each in evaluations.items():
        expected, found = ((one.translations.sources, one.translations.references) for one in (first, each))
        if found != expected:
            raise ValueError(f"compare: {name!r} has other test sentences than {names[0]!r}")
    output_dir.mkdir(parents=True, exist_ok=True)
    stored = [f"{name}.jsonl" for name in [*names, *_names_before(output_dir)]]
    pictures = [f"{_FIGURE}{ending}" for ending in (".png", ".svg", ".json")]
    put_report_aside(output_dir, "comparison", partial(_is_same, evaluations), [*stored, *pictures])
    for name, each in evaluations.items():
        each.translations.save(output_dir / f"{name}.jsonl")
    models = {name: each.metrics for name, each in evaluations.items()}
    differences = []
    for (name, ours), (other, theirs) in combinations(evaluations.items(), 2):
        lower, upper = bootstrap_difference(*(sentence_statistics(each.translations) for each in (ours, theirs)))
        bleu = ours.metrics["bleu"] - theirs.metrics["bleu"]
        differences.append({"of": name, "minus": other, "bleu": bleu, "lower": lower, "upper": upper})
    result = {"models": models, "differences": differences, "conventions": CONVENTIONS}
    write_json(output_dir / "comparison.json", result)
    kept = [place for place, row in enumerate(first.by_length) if row["sentences"]]
    rows = {name: [each.by_length[place] for place in kept] for name, each in evaluations.items()}
    figure = output_dir / f"{_FIGURE}.png"
    save_figure(plot_bleu_by_length(rows), figure, {"rows": rows, "conventions": CONVENTIONS})
    return [
        *(f"{name}: BLEU {each['bleu']:.2f}, perplexity {each['perplexity']:.2f}" for name, each in models.items()),
        *(
            f"{pair['of']} − {pair['minus']}: {pair['bleu']:+.2f} BLEU "
            f"(95 %: {pair['lower']:+.2f} to {pair['upper']:+.2f})"
            for pair in differences
        ),
        f"see {figure}",
    ]


def _names_before(folder: Path) -> list[str]:
    """The models of the comparison that the folder has, whose translations lie beside it."""
    try:
        models = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["models"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []
    return [name for name in models if Path(name).name == name] if isinstance(models, dict) else []


def _is_same(evaluations: Mapping[str, TranslatorEvaluation], before: dict[str, Any]) -> bool:
    """Whether an earlier comparison was of these models and gave the same results, but for rounding."""
    models = before["models"]
    if not isinstance(models, dict) or list(models) != list(evaluations):  # of images: a list
        return False
    pairs = ((models[name]["bleu"], each.metrics["bleu"]) for name, each in evaluations.items())
    return all(math.isclose(earlier, now, rel_tol=1e-3, abs_tol=1e-4) for earlier, now in pairs)
