"""The settings of a translation run: the translator, the sentence pairs, the search, and the rules between them.

Vaswani et al. 2017; Bahdanau et al. 2015; Cho et al. 2014. The sizes of vocabularies are learned from the data, so they
are passed when a model is built.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vit.config.rules import check, check_effect, check_finite, check_positive, check_rate, check_seed
from vit.config.run import RunConfig, TrainConfig
from vit.config.sizes import MOST_CHANNELS, MOST_LAYERS, MOST_SAMPLES, check_most
from vit.config.text_model import Activation, LayerConfig, NormPlacement, TextPositionKind
from vit.config.vit import Backend, check_heads

SMALLEST_VOCABULARY = 260
"""The 256 bytes, so that every line can be written, and four special tokens."""

MOST_VOCABULARY = 10**6
"""The largest tokenizers published have a quarter of it; each token takes a row of weights."""

MOST_LENGTH_PENALTY = 10
"""Far beyond the 0.6 to 1 in use; for long translations a power of some hundreds is no number any more."""


@dataclass(frozen=True, kw_only=True)
class TranslatorConfig:
    """The `model:` section of a translation run."""

    name: Literal["transformer", "bahdanau", "rnn"] = "transformer"
    """`bahdanau`: GRUs whose decoder attends to the source; `rnn`: the same with one fixed vector in its place."""
    width: int = 256
    """Width of tokens' vectors and of hidden states (a GRU's, in one direction)."""
    depth: int = 3
    """Layers of the encoder."""
    decoder_depth: int | None = None
    """None: as many as the encoder's. `bahdanau` always has one."""
    num_heads: int = 8
    """Attention heads of a layer; it divides the width."""
    hidden_width: int | None = None
    """`transformer`: of the feed-forward layers, None: 4 × width. `bahdanau`: of the alignment, None: width."""
    norm: NormPlacement = "pre"
    """LayerNorm before each part of a layer, or after it as in Vaswani et al."""
    activation: Activation = "relu"
    """Activation of the feed-forward layers."""
    positions: TextPositionKind = "sinusoidal"
    """The position embedding of the tokens; `rope` rotates queries and keys."""
    max_length: int = 256
    """`positions: learned` only: tokens of the longest sequence there is a position for."""
    dropout_rate: float = 0.1
    """Dropout of embeddings and of every part of a layer."""
    attention_dropout_rate: float = 0.0
    """Dropout of attention's weights."""
    score: Literal["additive", "dot"] = "additive"
    """`bahdanau` only: `wᵀ tanh(W s + U h)` or `(W s)ᵀ(U h)`."""
    share_embeddings: bool = False
    """One table of vectors for source and target, which then have one vocabulary."""
    tie_output: bool = True
    """The target's table is the matrix that makes the logits."""
    backend: Backend = "auto"
    """The code that computes attention; `auto`: the fastest that this machine and this input allow."""

    def __post_init__(self) -> None:
        check_finite("model", self)
        channels = dict.fromkeys(("width", "hidden_width", "max_length"), MOST_CHANNELS)
        check_most("model", self, channels | dict.fromkeys(("depth", "decoder_depth"), MOST_LAYERS))
        for name in ("width", "depth", "decoder_depth", "num_heads", "hidden_width", "max_length"):
            check_positive(f"model.{name}", getattr(self, name))
        for name in ("dropout_rate", "attention_dropout_rate"):
            check_rate(f"model.{name}", getattr(self, name))
        self._check_effects()
        if self.name == "transformer":
            self._check_widths()

    def _check_effects(self) -> None:
        transformer, bahdanau = self.name == "transformer", self.name == "bahdanau"
        of_transformer = ("num_heads", "norm", "activation", "positions", "attention_dropout_rate", "backend")
        learned = transformer and self.positions == "learned"
        needs = {
            **dict.fromkeys(of_transformer, (transformer, "model.name 'transformer'")),
            "decoder_depth": (not bahdanau, "model.name 'transformer' or 'rnn'"),
            "hidden_width": (self.name != "rnn", "model.name 'transformer' or 'bahdanau'"),
            "max_length": (learned, "model.positions 'learned'"),
            "score": (bahdanau, "model.name 'bahdanau'"),
        }
        check_effect("model", self, needs)

    def _check_widths(self) -> None:
        check_heads(self.width, self.num_heads)
        even = "model.positions {!r} needs an even number"
        if self.positions == "sinusoidal":
            check(self.width % 2 == 0, "model.width", self.width, even.format(self.positions))
        if self.positions == "rope":
            head_width = self.width // self.num_heads
            check(head_width % 2 == 0, "model.width / model.num_heads", head_width, even.format(self.positions))

    @property
    def decoder_layers(self) -> int:
        if self.name == "bahdanau":
            return 1
        return self.depth if self.decoder_depth is None else self.decoder_depth

    @property
    def alignment_width(self) -> int:
        """Width of the vectors that `bahdanau` compares."""
        return self.width if self.hidden_width is None else self.hidden_width

    def layer(self, norm_eps: float) -> LayerConfig:
        """A layer of `transformer`."""
        return LayerConfig(
            width=self.width,
            num_heads=self.num_heads,
            hidden_width=4 * self.width if self.hidden_width is None else self.hidden_width,
            norm=self.norm,
            norm_eps=norm_eps,
            activation=self.activation,
            dropout_rate=self.dropout_rate,
            attention_dropout_rate=self.attention_dropout_rate,
            backend=self.backend,
        )


@dataclass(frozen=True, kw_only=True)
class TextDataConfig:
    """The `data:` section of a translation run."""

    sets: ClassVar = ("multi30k", "copying")
    folder_set: ClassVar = "multi30k"
    """The set that `--data FOLDER` means."""
    same_in_any_folder: ClassVar = True
    """A set of that name in another folder is the same one, and keeps its languages and parts."""
    rootless_sets: ClassVar = ("copying",)
    one_sets_settings: ClassVar = (
        *("source_language", "target_language", "val_part", "test_parts", "vocabulary_size", "shared_vocabulary"),
        *("copying_symbols", "copying_lengths", "copying_sentences", "copying_seed"),
    )
    """Settings that belong to one set, and return to their defaults where another is named."""

    name: Literal["multi30k", "copying"] = "multi30k"
    """`multi30k`: captions in two languages (Elliott et al. 2016). `copying`: random symbols, to be repeated."""
    root: str = "data"
    """`multi30k` only: the folder of `train.de.gz`, `train.en.gz` and their like."""
    source_language: str = "de"
    """The language that is translated, as its files end."""
    target_language: str = "en"
    """The language that is translated into."""
    val_part: str = "val"
    """The part that chooses the checkpoint: the name of its files before the language."""
    test_parts: tuple[str, ...] = ("test_2016_flickr",)
    """The part or parts that are tested at the end, as one set."""
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
    """Batches whose sentences are sorted by length together; 1: lengths are mixed at random."""
    copying_symbols: int = 20
    """Number of different symbols in sentences to copy."""
    copying_lengths: tuple[int, int] = (5, 40)
    """The shortest and the longest sentence, in symbols; all lengths from one to the other are equally frequent."""
    copying_sentences: int = 10_000
    """In the training part; a tenth of it again for validation and for the test."""
    copying_seed: int = 0
    """Fixes the sentences; the training seed does not touch them."""

    def __post_init__(self) -> None:
        most = {"vocabulary_size": MOST_VOCABULARY, "copying_symbols": MOST_VOCABULARY}
        lengths = dict.fromkeys(("copying_lengths", "max_length"), MOST_CHANNELS)
        samples = dict.fromkeys(("copying_sentences", "batch_size", "eval_batch_size", "pool"), MOST_SAMPLES)
        check_most("data", self, most | lengths | samples)
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
        rule = f"{self.val_part!r} is the validation part, which chooses the weights"
        check(self.val_part not in self.test_parts, "data.test_parts", self.test_parts, rule)
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


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The search for the test set's translations. Validation searches greedily."""

    beam_size: int = 4
    """1: greedy search."""
    length_penalty: float = 0.6
    """Exponent of the penalty (Wu et al. 2016, eq. 14); 0: hypotheses are compared by probability alone."""
    max_length: int = 100
    """Tokens of a translation at most."""

    def __post_init__(self) -> None:
        check_finite("search", self)
        check_most("search", self, {"beam_size": 1_000, "max_length": MOST_CHANNELS})
        for name in ("beam_size", "max_length"):
            check_positive(f"search.{name}", getattr(self, name))
        rule = f"it must be between 0 and {MOST_LENGTH_PENALTY}"
        check(0 <= self.length_penalty <= MOST_LENGTH_PENALTY, "search.length_penalty", self.length_penalty, rule)
        has_beam = self.beam_size > 1
        check_effect("search", self, {"length_penalty": (has_beam, "search.beam_size above 1")})

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `find_search` and `translate_all`."""
        penalty = self.length_penalty if self.beam_size > 1 else 0.0
        return {"max_length": self.max_length, "beam_size": self.beam_size, "length_penalty": penalty}


@dataclass(frozen=True, kw_only=True)
class TranslationTrainConfig(TrainConfig):
    """The `train:` section of a translation run."""

    label_smoothing: float = 0.0
    """Over the whole vocabulary of the target."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("train.label_smoothing", self.label_smoothing)


@dataclass(frozen=True, kw_only=True)
class TranslationRun(RunConfig):
    """Training a translator."""

    evaluation_settings: ClassVar = ("data", "search", "device", "train.precision")

    task: Literal["translation"] = "translation"
    model: TranslatorConfig = field(default_factory=TranslatorConfig)
    data: TextDataConfig = field(default_factory=TextDataConfig)
    train: TranslationTrainConfig = field(default_factory=TranslationTrainConfig)
    search: SearchConfig = field(default_factory=SearchConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_batch_size(self.data.batch_size)
        rule = "batches are as long as their longest sentence, and graphs are recorded for one size; leave it out"
        check(not self.train.cuda_graphs, "train.cuda_graphs", True, rule)
        one_vocabulary = self.data.name == "copying" or self.data.shared_vocabulary
        rule = "source and target then have one table, so set data.shared_vocabulary true"
        check(one_vocabulary or not self.model.share_embeddings, "model.share_embeddings", True, rule)
        if self.model.name == "transformer" and self.model.positions == "learned":
            longest = max(self.data.max_length + 1, self.search.max_length)
            rule = f"data.max_length and search.max_length need {longest} positions"
            check(self.model.max_length >= longest, "model.max_length", self.model.max_length, rule)


RUN = TranslationRun
