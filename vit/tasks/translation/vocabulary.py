"""Lines to token numbers and back, with the `tokenizers` library.

Byte-level byte-pair encoding (Sennrich et al. 2016; bytes: Radford et al. 2019), so that any line is decoded exactly;
or whole words, for the copying task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vit.tasks.translation.config import TextDataConfig
from vit.tasks.translation.text import TextSplit

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, BOS, EOS, UNK = range(4)
SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]
_OCCURRENCES = 2
"""A pair of tokens that occurs less often is not merged."""


@contextmanager
def text_extra() -> Iterator[None]:
    """Wrap the import of a library of the extra `text`. ValueError with the command that installs a missing one."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(f'text: the library {error.name!r} is not installed: pip install "vit[text]"') from error


class Vocabulary:
    """The tokens of a language, or of two. Specials come first: `PAD`, `BOS`, `EOS`, `UNK`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.encode_special_tokens = True  # a line may hold the letters `<pad>`; they are letters
        self._tokenizer = tokenizer

    @classmethod
    def train(cls, lines: Iterable[str], size: int) -> Vocabulary:
        """At most `size` tokens: the bytes, and repeated merges of the most frequent pair of tokens.

        The same lines in any order give the same vocabulary.
        """
        with text_extra():
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=_OCCURRENCES,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(lines, trainer)
        return cls(tokenizer)

    @classmethod
    def of_words(cls, lines: Iterable[str]) -> Vocabulary:
        """Every word of the lines, spaces between them, as one token; any other word is `UNK`."""
        with text_extra():
            from tokenizers import Tokenizer, models, pre_tokenizers
        words = [*SPECIALS, *sorted({word for line in lines for word in line.split()} - set(SPECIALS))]
        numbers = {word: number for number, word in enumerate(words)}
        tokenizer = Tokenizer(models.WordLevel(numbers, unk_token=SPECIALS[UNK]))
        tokenizer.add_special_tokens(SPECIALS)
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return cls(tokenizer)

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        """Read the output of `to_json`."""
        with text_extra():
            from tokenizers import Tokenizer
        return cls(Tokenizer.from_str(text))

    def to_json(self) -> str:
        return str(self._tokenizer.to_str())

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, line: str) -> list[int]:
        """The line's tokens, no special one before or after them."""
        return [UNK if token in (PAD, BOS, EOS) else token for token in self._tokenizer.encode(line).ids]

    def decode(self, tokens: Sequence[int]) -> str:
        """The line; special tokens are skipped, and bytes that are no UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Each token's text, or a special one's name."""
        return [SPECIALS[token] if token < len(SPECIALS) else self.decode([token]) for token in tokens]


@dataclass(frozen=True)
class Vocabularies:
    """The source's and the target's; one and the same object where it is shared."""

    source: Vocabulary
    target: Vocabulary

    @classmethod
    def train(cls, split: TextSplit, config: TextDataConfig) -> Vocabularies:
        """Learned from the training part alone."""
        if config.name == "copying":
            shared = Vocabulary.of_words(split.sources)
        elif config.shared_vocabulary:
            shared = Vocabulary.train([*split.sources, *split.targets], config.vocabulary_size)
        else:
            sides = (split.sources, split.targets)
            return cls(*(Vocabulary.train(lines, config.vocabulary_size) for lines in sides))
        return cls(shared, shared)

    @property
    def shared(self) -> bool:
        return self.source is self.target

    def to_json(self) -> str:
        target = None if self.shared else self.target.to_json()
        return json.dumps({"source": self.source.to_json(), "target": target})

    @classmethod
    def from_json(cls, text: str) -> Vocabularies:
        """Read the output of `to_json`; a shared vocabulary is shared again."""
        content = json.loads(text)
        source = Vocabulary.from_json(content["source"])
        return cls(source, source if content["target"] is None else Vocabulary.from_json(content["target"]))

    def numbers_as(self, text: str) -> bool:
        """Whether tokens have the numbers that they have in an output of `to_json`, of any version of `tokenizers`."""
        return _numbers(self.to_json()) == _numbers(text)


def _numbers(text: str) -> list[dict[str, int]]:
    return [json.loads(side)["model"]["vocab"] for side in json.loads(text).values() if side is not None]
