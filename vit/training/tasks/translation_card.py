"""What a finished translation run shows of itself: curves, BLEU by length, a card. It measures nothing
that the run has not.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from vit.config import TextDataConfig
from vit.evaluation.translation import CONVENTIONS as TRANSLATION_CONVENTIONS
from vit.evaluation.translation import Translations, bleu_by_length
from vit.evaluation.translator_checkpoint import length_edges
from vit.figures.bleu_by_length import bleu_by_length as draw_bleu_by_length
from vit.figures.learning_curves import CONVENTIONS, learning_curves
from vit.figures.style import save_figure
from vit.runs import read_metrics


def draw_run(run: Path, model_name: str, translations: Translations, data: TextDataConfig) -> None:
    """The learning curves of a run and its BLEU by the source's length, with their numbers."""
    figures = run / "figures"
    figures.mkdir(exist_ok=True)
    history = read_metrics(run)
    numbers: dict[str, Any] = {"history": history, "conventions": CONVENTIONS | TRANSLATION_CONVENTIONS}
    save_figure(learning_curves(history), figures / "learning_curves.png", numbers)
    rows = {model_name: [row for row in bleu_by_length(translations, length_edges(data)) if row["sentences"]]}
    numbers = {"rows": rows, "conventions": TRANSLATION_CONVENTIONS}
    save_figure(draw_bleu_by_length(rows), figures / "bleu_by_length.png", numbers)


def model_card(run: Path, summary: dict[str, Any], data: TextDataConfig) -> str:
    """Markdown: what the model is, what it was trained on, and what was measured."""
    rows = [
        ("test BLEU", f"{summary['test.bleu']:.2f} of {summary['test.n_seen']:.0f} sentences"),
        ("its signature", f"`{summary['bleu_signature']}`"),
        ("test perplexity a token", f"{summary['test.perplexity']:.3f}"),
        ("validation BLEU, greedy (chose the weights)", f"{summary['val.bleu']:.2f} at step {summary['best.step']}"),
        ("test BLEU of the last weights", f"{summary['last.test.bleu']:.2f}"),
        ("parameters", f"{summary['params']:,}"),
        (
            "training",
            f"{summary['epochs']} epochs, {summary['seconds']:.0f} s, "
            f"{summary['sentences_per_second']:.0f} sentences/s",
        ),
        ("precision, device, seed", f"{summary['precision']}, {summary['device']}, {summary['seed']}"),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    task = f"from {data.source_language} to {data.target_language}" if data.name == "multi30k" else "to copy"
    command = f'vit translate --checkpoint {shlex.quote(str(run))} "…"'
    return (
        f"# {summary['model']} on {summary['dataset']}, {task}\n\n"
        f"| measured | |\n|---|---|\n{table}\n\n"
        "The test set was read once, after training; the weights were chosen on the validation set. The translations: "
        "`predictions/test.jsonl`. Every setting and its origin: `config.yaml`. Translate with\n\n"
        f"    {command}\n\n"
        "![learning curves](figures/learning_curves.png)\n\n![BLEU by length](figures/bleu_by_length.png)\n"
    )
