"""Which sentence pairs a translation run reads, and how they become batches of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vit.config.rules import check, check_effect, check_positive, check_seed

SMALLEST_VOCABULARY = 260
"""The 256 bytes, so that every line can be written, and four special tokens."""


@dataclass(frozen=True, kw_only=True)
class TextDataConfig:
    """The `data:` section of a translation run."""

    name: Literal["multi30k", "copying"] = "multi30k"
    """`multi30k`: captions in two languages (Elliott et al. 2016). `copying`: random symbols, to be said again."""
    root: str = "data"
    """`multi30k` only: the folder of `train.de.gz`, `train.en.gz` and their like."""
    source_language: str = "de"
    target_language: str = "en"
    val_part: str = "val"
    """The part that chooses the checkpoint: the name of its files before the language."""
    test_parts: tuple[str, ...] = ("test_2016_flickr",)
    """The part or parts that are judged at the end, as one set."""
    vocabulary_size: int = 8000
    """Tokens of a vocabulary at most: merging ends earlier where no pair of tokens is left that occurs twice."""
    shared_vocabulary: bool = True
    """One vocabulary of both languages, or one of each."""
    batch_size: int = 128
    """Sentence pairs an optimizer step, over all processes and accumulated micro-batches."""
    eval_batch_size: int = 128
    """Sentences a forward pass of one process at evaluation."""
    max_length: int = 100
    """Training pairs with a longer side, in tokens of the text alone, are left out and counted."""
    pool: int = 32
    """Batches whose sentences are sorted by length together; 1: batches are drawn whatever the lengths."""
    copying_symbols: int = 20
    copying_lengths: tuple[int, int] = (5, 40)
    """The shortest and the longest sentence, in symbols; all lengths from one to the other are equally frequent."""
    copying_sentences: int = 10_000
    """In the training part; a tenth of it again for validation and for the test."""
    copying_seed: int = 0
    """Fixes the sentences; the training seed does not touch them."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "eval_batch_size", "max_length", "pool"):
            check_positive(f"data.{name}", getattr(self, name))
        rule = f"it must be at least {SMALLEST_VOCABULARY}: the 256 bytes and four special tokens"
        check(self.vocabulary_size >= SMALLEST_VOCABULARY, "data.vocabulary_size", self.vocabulary_size, rule)
        self._check_parts()
        self._check_copying()
        multi30k, copying = self.name == "multi30k", self.name == "copying"
        of_files = ("root", "source_language", "target_language", "val_part", "test_parts")
        learned = ("vocabulary_size", "shared_vocabulary")
        symbols = ("copying_symbols", "copying_lengths", "copying_sentences", "copying_seed")
        needs = {
            **dict.fromkeys((*of_files, *learned), (multi30k, "data.name 'multi30k'")),
            **dict.fromkeys(symbols, (copying, "data.name 'copying'")),
        }
        check_effect("data", self, needs)

    def _check_parts(self) -> None:
        languages = self.source_language, self.target_language
        rule = f"it must differ from data.source_language ({languages[0]!r})"
        check(languages[0] != languages[1], "data.target_language", languages[1], rule)
        for name, parts in (("val_part", (self.val_part,)), ("test_parts", self.test_parts)):
            check("train" not in parts, f"data.{name}", getattr(self, name), "'train' is the part that is trained on")
        rule = "at least one part, and none of them twice"
        check(0 < len(set(self.test_parts)) == len(self.test_parts), "data.test_parts", self.test_parts, rule)

    def _check_copying(self) -> None:
        check(self.copying_symbols >= 2, "data.copying_symbols", self.copying_symbols, "it must be at least 2")
        low, high = self.copying_lengths
        check(1 <= low <= high, "data.copying_lengths", self.copying_lengths, "1 ≤ shortest ≤ longest")
        fits = self.name != "copying" or high <= self.max_length
        rule = f"data.max_length ({self.max_length}) would leave the longest out; it must be as large"
        check(fits, "data.copying_lengths", self.copying_lengths, rule)
        rule = "it must be at least 10, so that a tenth of it can be held out"
        check(self.copying_sentences >= 10, "data.copying_sentences", self.copying_sentences, rule)
        check_seed("data.copying_seed", self.copying_seed)
