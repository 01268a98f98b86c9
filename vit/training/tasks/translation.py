"""Training a translator: which sentences, which model, what is lost, and how it is judged."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from vit.config import TranslationRun
from vit.data.text import check_test, fingerprint, open_test, open_training
from vit.data.text_loading import EncodedSplit, TextBatch, TextEvalLoader, TextTrainLoader
from vit.data.vocabulary import PAD, Vocabularies
from vit.engine import gather_uneven
from vit.evaluation.translation import (
    Translations,
    bleu,
    bleu_signature,
    translate_all,
    translation_metrics,
)
from vit.models.translator import Translator, build_translator
from vit.randomness import SampleRandom
from vit.training.interruption import NonFinite
from vit.training.tasks.task import Goal


class Translation:
    """The `Task` of a `TranslationRun`. ValueError for any setting that cannot be honoured."""

    unit = "sentences"
    counts_hits = True
    goal = Goal("bleu")

    def __init__(self, config: TranslationRun, accelerator: Accelerator) -> None:
        self.config = config
        self.accelerator = accelerator
        train, val = open_training(config.data)
        check_test(config.data)
        self.fingerprint = f"{fingerprint(train)}+{fingerprint(val)}"
        self.vocabularies = Vocabularies.train(train, config.data)
        self.dataset = config.data.name
        self.model_name = config.model.name
        sizes = {"source": len(self.vocabularies.source), "target": len(self.vocabularies.target)}
        self.model: Translator = build_translator(
            config.model, source_vocabulary=sizes["source"], target_vocabulary=sizes["target"]
        )
        self.train_loader = TextTrainLoader(
            EncodedSplit.encode(train, self.vocabularies),
            config.data,
            seed=config.seed,
            accumulation_steps=config.train.accumulation_steps,
            **self._place,
        )
        self.val_loader = TextEvalLoader(EncodedSplit.encode(val, self.vocabularies), config.data, **self._place)

    @property
    def _place(self) -> dict[str, int]:
        return {"rank": self.accelerator.process_index, "world_size": self.accelerator.num_processes}

    def notes(self) -> list[str]:
        return []

    def losses(self, model: nn.Module, batch: TextBatch, epoch: int) -> tuple[Tensor, Tensor]:
        """Cross-entropy and right guesses, summed over each sentence's tokens after BOS."""
        rng = SampleRandom.at(self.config.seed, epoch, batch.positions).fork("model")
        logits = model(batch.source, batch.source_lengths, batch.target[:, :-1], rng=rng)  # b m-1 k
        wanted = batch.target[:, 1:]
        losses = F.cross_entropy(
            logits.float().flatten(0, 1),
            wanted.flatten(),
            ignore_index=PAD,
            label_smoothing=self.config.train.label_smoothing,
            reduction="none",
        ).view_as(wanted)  # b m-1, 0 behind a sentence's end
        hits = (logits.detach().argmax(dim=-1) == wanted) & (wanted != PAD)
        return losses.sum(dim=1), hits.sum(dim=1).float()

    def names(self, indices: list[int]) -> list[str]:
        return [self.train_loader.split.text.name(index) for index in indices]

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Of the true translations, token by token; and BLEU of a greedy search."""
        metrics = translation_metrics(model, self.val_loader, **self._settings)
        if not math.isfinite(metrics["nll"]):
            raise NonFinite("the model's answers to validation sentences are not finite")
        return metrics | {"bleu": bleu(self._translate(model, self.val_loader, beam_size=1))}

    def test(self, model: nn.Module) -> tuple[Translations, dict[str, float]]:
        translations = self._translate(model, self._test_loader, beam_size=self.config.search.beam_size)
        return translations, translation_metrics(model, self._test_loader, **self._settings)

    @cached_property
    def _test_loader(self) -> TextEvalLoader:
        """Opened when training is over."""
        split = EncodedSplit.encode(open_test(self.config.data), self.vocabularies)
        return TextEvalLoader(split, self.config.data, **self._place)

    def _translate(self, model: nn.Module, loader: TextEvalLoader, beam_size: int) -> Translations:
        search = self.config.search
        return translate_all(
            model,
            loader,
            self.vocabularies.target,
            max_length=search.max_length,
            beam_size=beam_size,
            length_penalty=search.length_penalty if beam_size > 1 else 0.0,
            **self._settings,
        )

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "device": self.accelerator.device,
            "autocast": self.accelerator.autocast,
            "gather": lambda values: gather_uneven(self.accelerator, values),
        }

    def state(self) -> dict[str, Any]:
        return {
            "model": {"kind": "translator", **asdict(self.config.model)},
            "vocabulary_sizes": [len(self.vocabularies.source), len(self.vocabularies.target)],
            "vocabularies": self.vocabularies.to_json(),
        }

    def recall(self, state: dict[str, Any]) -> None:
        """Nothing is found out in training."""

    def summary(self, best: Any, last: Any) -> dict[str, Any]:
        (translations, metrics), (last_translations, _) = best, last
        return {
            "vocabulary": len(self.vocabularies.target),
            "train.n_left_out": self.train_loader.num_left_out,
            "test.bleu": bleu(translations),
            **{f"test.{name}": value for name, value in metrics.items()},
            "last.test.bleu": bleu(last_translations),
            "bleu_signature": bleu_signature(),
            "beam_size": self.config.search.beam_size,
        }

    def write(self, run: Path, best: Any, summary: dict[str, Any]) -> None:
        from vit.training.tasks.translation_card import draw_run, model_card

        translations, _ = best
        translations.save(run / "predictions" / "test.jsonl")
        draw_run(run, self.model_name, translations, self.config.data)
        (run / "README.md").write_text(model_card(run, summary, self.config.data))

    def plan(self, precision: str) -> dict[str, str]:
        data, train = self.config.data, self.train_loader
        state = sum(parameter.nbytes for parameter in self.model.parameters())
        return {
            "model": f"{self.model_name}, {len(self.vocabularies.source):,} source tokens, "
            f"{len(self.vocabularies.target):,} target tokens",
            "sentences": f"{train.samples_per_epoch:,} pairs to train on ({train.num_left_out:,} left out as too "
            f"long), {len(self.val_loader.split):,} to validate, {data.batch_size} a step",
            "weights": f"{state / 2**20:.0f} MiB in fp32, computed with in {precision}",
            "search": f"beam of {self.config.search.beam_size} on the test set, greedy on the validation set",
        }
