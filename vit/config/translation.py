"""A translation run: every section together, how a translation is searched for, and the rules between sections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vit.config.rules import check, check_effect, check_finite, check_positive
from vit.config.run import RunConfig
from vit.config.text_data import TextDataConfig
from vit.config.text_model import TranslatorConfig


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How the test set is translated. Validation searches greedily."""

    beam_size: int = 4
    """1: greedily."""
    length_penalty: float = 0.6
    """Exponent of the penalty (Wu et al. 2016, eq. 14); 0: hypotheses are compared by probability alone."""
    max_length: int = 100
    """Tokens of a translation at most."""

    def __post_init__(self) -> None:
        check_finite("search", self)
        for name in ("beam_size", "max_length"):
            check_positive(f"search.{name}", getattr(self, name))
        check(self.length_penalty >= 0, "search.length_penalty", self.length_penalty, "it must be at least 0")
        has_beam = self.beam_size > 1
        check_effect("search", self, {"length_penalty": (has_beam, "search.beam_size above 1")})


@dataclass(frozen=True, kw_only=True)
class TranslationRun(RunConfig):
    """Training a translator."""

    task: Literal["translation"] = "translation"
    model: TranslatorConfig = field(default_factory=TranslatorConfig)
    data: TextDataConfig = field(default_factory=TextDataConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_batch_size(self.data.batch_size)
        rule = "a translator's loss is cross_entropy"
        check(self.train.loss == "cross_entropy", "train.loss", self.train.loss, rule)
        rule = "batches are as long as their longest sentence, and graphs are recorded for one size; leave it out"
        check(not self.train.cuda_graphs, "train.cuda_graphs", True, rule)
        one_vocabulary = self.data.name == "copying" or self.data.shared_vocabulary
        rule = "source and target then have one table, so set data.shared_vocabulary true"
        check(one_vocabulary or not self.model.share_embeddings, "model.share_embeddings", True, rule)
        if self.model.name == "transformer" and self.model.positions == "learned":
            longest = max(self.data.max_length + 1, self.search.max_length)
            rule = f"data.max_length and search.max_length need {longest} positions"
            check(self.model.max_length >= longest, "model.max_length", self.model.max_length, rule)
