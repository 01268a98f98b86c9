"""Training a translator: sentences, vocabularies, model, losses, validation."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.config import check
from vit.engine import Accelerator, gather_uneven, rank_and_world_size
from vit.randomness import SampleRandom
from vit.stopwatch import Timer, untimed
from vit.tasks.task import NonFinite, TaskInfo
from vit.tasks.translation.config import SearchConfig, TranslationRun
from vit.tasks.translation.loading import EncodedSplit, TextBatch, TextEvalLoader, TextTrainLoader
from vit.tasks.translation.metrics import Translations, bleu, translate_all, translation_metrics
from vit.tasks.translation.text import TextSplit, check_test, fingerprint, open_test, open_training
from vit.tasks.translation.translator import Translator, build_translator
from vit.tasks.translation.vocabulary import PAD, Vocabularies, text_extra


def _check_positions(split: EncodedSplit, part: str, positions: int) -> None:
    """ValueError for a sentence that the evaluation could not read: only those to train on are left out as too long."""
    # a target's last token is only predicted
    lengths = [*map(len, split.sources), *(len(target) - 1 for target in split.targets)]
    longest = max(lengths, default=0)
    rule = f"the longest {part} sentence needs {longest} positions; raise it, or set model.positions sinusoidal"
    check(longest <= positions, "model.max_length", positions, rule)


class Translation:
    """The `Task` of a `TranslationRun`. ValueError for any setting that cannot be honoured."""

    def __init__(self, config: TranslationRun, accelerator: Accelerator, timer: Timer = untimed) -> None:
        self.config = config
        self.accelerator = accelerator
        with text_extra():
            import sacrebleu  # noqa: F401  it is used after the first epoch, which would be lost
        with timer("open the data"):
            train, val = open_training(config.data)
            check_test(config.data)
        with timer("fingerprint of the data"):
            self.info = TaskInfo(
                model_name=config.model.name,
                dataset=config.data.name,
                fingerprint=f"{fingerprint(train)}+{fingerprint(val)}",
                unit="sentences",
                metric="bleu",
                has_accuracy=True,
            )
        with timer("vocabularies"):
            self.vocabularies = Vocabularies.train(train, config.data)
        with timer("model"):
            self.model: Translator = build_translator(
                config.model,
                source_vocabulary=len(self.vocabularies.source),
                target_vocabulary=len(self.vocabularies.target),
            )
        self.train_loader = TextTrainLoader(
            EncodedSplit.encode(train, self.vocabularies),
            config.data,
            seed=config.seed,
            accumulation_steps=config.train.accumulation_steps,
            **self._place,
        )
        self.val_loader = self.eval_loader(val)
        if config.model.name == "transformer" and config.model.positions == "learned":
            test = EncodedSplit.encode(open_test(config.data), self.vocabularies)
            for part, split in (("validation", self.val_loader.split), ("test", test)):
                _check_positions(split, part, config.model.max_length)

    @property
    def _place(self) -> dict[str, int]:
        return rank_and_world_size(self.accelerator)

    def eval_loader(self, text: TextSplit) -> TextEvalLoader:
        return TextEvalLoader(EncodedSplit.encode(text, self.vocabularies), self.config.data, **self._place)

    def prepare(self, batch: TextBatch, device: torch.device) -> TextBatch:
        return batch.to(device)

    def losses(self, model: nn.Module, batch: TextBatch, epoch: int) -> tuple[Tensor, Tensor]:
        """Cross-entropy and right guesses, summed over each sentence's tokens after BOS."""
        rng = SampleRandom.at(self.config.seed, epoch, batch.positions).fork("model")
        logits = model(batch.source, batch.source_lengths, batch.target[:, :-1], rng=rng)  # b m-1 k
        labels = batch.target[:, 1:]
        losses = F.cross_entropy(
            logits.float().flatten(0, 1),
            labels.flatten(),
            ignore_index=PAD,
            label_smoothing=self.config.train.label_smoothing,
            reduction="none",
        ).view_as(labels)  # b m-1, 0 behind a sentence's end
        hits = (logits.detach().argmax(dim=-1) == labels) & (labels != PAD)
        return losses.sum(dim=1), hits.sum(dim=1).float()

    def sample_name(self, index: int) -> str:
        return self.train_loader.split.text.name(index)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """Metrics of the reference translations, token by token, and BLEU of a greedy search."""
        metrics = self.metrics(model, self.val_loader)
        if not math.isfinite(metrics["nll"]):
            raise NonFinite("the model's outputs for validation sentences are not finite")
        greedy = SearchConfig(beam_size=1, max_length=self.config.search.max_length)
        return metrics | {"bleu": bleu(self.translate(model, self.val_loader, greedy))}

    def metrics(self, model: nn.Module, loader: TextEvalLoader) -> dict[str, float]:
        return translation_metrics(model, loader, **self._processes)

    def translate(self, model: nn.Module, loader: TextEvalLoader, search: SearchConfig) -> Translations:
        return translate_all(model, loader, self.vocabularies.target, **search.arguments, **self._processes)

    @property
    def _processes(self) -> dict[str, Any]:
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

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing in it changes in training. ValueError where the weights were trained on other numbers of tokens."""
        if not self.vocabularies.numbers_as(state["vocabularies"]):
            raise ValueError(
                "task.vocabularies gives tokens other numbers than the vocabulary learned here from the same sentences "
                "(unless the library tokenizers was updated)"
            )


open_task = Translation
