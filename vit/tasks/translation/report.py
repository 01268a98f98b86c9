"""A translation run's plan, and its results: the test set translated, curves, BLEU by length, model card."""

from __future__ import annotations

import shlex
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from vit.figures.bleu_by_length import plot_bleu_by_length
from vit.figures.learning_curves import CONVENTIONS as LEARNING_CONVENTIONS
from vit.figures.style import save_figure
from vit.tasks.learning_curves import draw_learning_curves
from vit.tasks.task import Rates
from vit.tasks.translation.config import TextDataConfig
from vit.tasks.translation.evaluation import length_edges
from vit.tasks.translation.loading import TextEvalLoader
from vit.tasks.translation.metrics import CONVENTIONS, Translations, bleu, bleu_by_length, bleu_signature
from vit.tasks.translation.text import open_test
from vit.tasks.translation.training import Translation
from vit.wording import counted, markdown_table

Result = tuple[Translations, dict[str, float]]
"""The beam search's translations, and the metrics of the references."""


class TranslationReport:
    """The `Report` of a `Translation`."""

    def __init__(self, task: Translation) -> None:
        self.task = task

    def describe(self) -> dict[str, str]:
        task, data, train = self.task, self.task.config.data, self.task.train_loader
        source, target = task.vocabularies.source, task.vocabularies.target
        return {
            "model": f"{task.info.model_name}, {len(source):,} source tokens, {len(target):,} target tokens",
            "sentences": f"{train.samples_per_epoch:,} pairs to train on ({train.num_left_out:,} left out as too "
            f"long), {len(task.val_loader.split):,} to validate, {data.batch_size} a step",
        }

    def plan(self, precision: str) -> dict[str, str]:
        task = self.task
        weights = sum(parameter.nbytes for parameter in task.model.parameters())
        return {
            "weights": f"{weights / 2**20:.0f} MiB in fp32, computed with in {precision}",
            "search": f"beam of {task.config.search.beam_size} on the test set, greedy on the validation set",
        }

    @cached_property
    def test_loader(self) -> TextEvalLoader:
        """Opened when training is over."""
        return self.task.eval_loader(open_test(self.task.config.data))

    def test(self, model: nn.Module, _: dict[str, Any], /) -> Result:
        translations = self.task.translate(model, self.test_loader, self.task.config.search)
        return translations, self.task.metrics(model, self.test_loader)

    def summary(self, best: Result, last: Result) -> dict[str, Any]:
        translations, metrics = best
        return {
            "vocabulary": len(self.task.vocabularies.target),
            "train.n_left_out": self.task.train_loader.num_left_out,
            "test.bleu": bleu(translations),
            **{f"test.{name}": value for name, value in metrics.items()},
            "last.test.bleu": bleu(last[0]),
            "bleu_signature": bleu_signature(translations.references),
            "beam_size": self.task.config.search.beam_size,
        }

    def write(self, run: Path, best: Result, summary: dict[str, Any], rates: Rates | None) -> None:
        translations, _ = best
        translations.save(run / "predictions" / "test.jsonl")
        draw_run(run, self.task.info.model_name, translations, self.task.config.data, rates)
        (run / "README.md").write_text(model_card(run, summary, self.task.config.data), encoding="utf-8")


open_report = TranslationReport
NEXT = ("vit translate {run} SENTENCE…", "vit analyze {run}")


def headline(summary: dict[str, Any]) -> str:
    """The result in a few words."""
    return f"test BLEU {summary['test.bleu']:.2f} of {counted(summary['test.n_seen'], 'sentence')}"


def draw_run(run: Path, model_name: str, translations: Translations, data: TextDataConfig, rates: Rates | None) -> None:
    """Draw the learning curves of a run and its BLEU by the source's length, with their numbers."""
    draw_learning_curves(run, rates, LEARNING_CONVENTIONS | CONVENTIONS)
    rows = {model_name: [row for row in bleu_by_length(translations, length_edges(data)) if row["sentences"]]}
    numbers = {"rows": rows, "conventions": CONVENTIONS}
    save_figure(plot_bleu_by_length(rows), run / "figures" / "bleu_by_length.png", numbers)


def model_card(run: Path, summary: dict[str, Any], data: TextDataConfig) -> str:
    """The model, its training and its measured numbers as Markdown."""
    rows = [
        ("test BLEU", f"{summary['test.bleu']:.2f} of {counted(summary['test.n_seen'], 'sentence')}"),
        ("its signature", f"`{summary['bleu_signature']}`"),
        ("test perplexity a token", f"{summary['test.perplexity']:.3f}"),
        ("validation BLEU, greedy (chose the weights)", f"{summary['val.bleu']:.2f} at step {summary['best.step']}"),
        ("test BLEU of the last weights", f"{summary['last.test.bleu']:.2f}"),
        ("parameters", f"{summary['params']:,}"),
        (
            "training",
            f"{counted(summary['epochs'], 'epoch')}, {summary['seconds']:.0f} s, "
            f"{summary['sentences_per_second']:.0f} sentences/s",
        ),
        ("precision, device, seed", f"{summary['precision']}, {summary['device']}, {summary['seed']}"),
    ]
    task = f"from {data.source_language} to {data.target_language}" if data.name == "multi30k" else "to copy"
    command = f'vit translate {shlex.quote(str(run))} "…"'
    return (
        f"# {summary['model']} on {summary['dataset']}, {task}\n\n"
        f"{markdown_table(('measured', ''), rows)}\n\n"
        "The test set was evaluated after training and chose nothing; the weights were chosen on the validation set. "
        "The translations: `predictions/test.jsonl`. Every setting and its origin: `config.yaml`. Translate with\n\n"
        f"    {command}\n\n"
        "![learning curves](figures/learning_curves.png)\n\n![BLEU by length](figures/bleu_by_length.png)\n"
    )
