from __future__ import annotations

import builtins
import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.translation.text_files import PAIRS
from vit.tasks.translation.config import SMALLEST_VOCABULARY, TextDataConfig
from vit.tasks.translation.text import TextSplit, open_parts, open_test, open_training
from vit.tasks.translation.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabularies, Vocabulary, text_extra

MULTI30K = Path("../shared/data/multi30k")
LINES = ["low lower lowest", "new newer newest", "low new wide", "über größer, 2 × größer!"]
ODD = ["", " ", "  two  spaces ", "\t\u00a0\u2028", "<pad> <eos>a<unk>", "油 🙂 ẞ", "\x00", "line\nfeed"]


def split_of(pairs: list[tuple[str, str]]) -> TextSplit:
    sources, targets = zip(*pairs, strict=True)
    return TextSplit(list(sources), list(targets), {"train": len(pairs)})


def test_merges_worked_by_hand() -> None:
    """`a b` stands together three times, ` a` twice: `ab` is merged first, then ` ab`."""
    bytes_only, one, two = (Vocabulary.train(["ab ab ab"], SMALLEST_VOCABULARY + extra) for extra in range(3))
    assert [len(vocabulary) for vocabulary in (bytes_only, one, two)] == [260, 261, 262]
    assert bytes_only.pieces(bytes_only.encode("ab ab")) == ["a", "b", " ", "a", "b"]
    space = bytes_only.encode(" ")
    assert one.encode("ab ab") == [260, *space, 260]
    assert two.encode("ab ab") == [260, 261]
    assert two.pieces([260, 261]) == ["ab", " ab"]


def test_merging_ends_where_no_pair_occurs_twice() -> None:
    assert len(Vocabulary.train(["ab ab"], 8000)) == 261  # ` ab` occurs once


def test_specials_have_their_numbers_and_say_nothing() -> None:
    vocabulary = Vocabulary.train(LINES, 300)
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert vocabulary.pieces([PAD, BOS, EOS, UNK]) == SPECIALS
    tokens = vocabulary.encode("low")
    assert vocabulary.decode([BOS, *tokens, EOS, PAD, PAD]) == "low"
    assert vocabulary.decode([BOS, EOS]) == ""


@pytest.mark.parametrize("line", [*LINES, *ODD])
def test_any_line_comes_back_and_holds_no_special_token(line: str) -> None:
    vocabulary = Vocabulary.train(LINES, 300)
    tokens = vocabulary.encode(line)
    assert vocabulary.decode(tokens) == line
    assert all(len(SPECIALS) <= token < len(vocabulary) for token in tokens)


@settings(max_examples=100, deadline=None)
@given(line=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_comes_back(line: str) -> None:
    vocabulary = Vocabulary.train(LINES, 300)
    assert vocabulary.decode(vocabulary.encode(line)) == line


def test_the_order_of_the_lines_changes_nothing() -> None:
    found = {Vocabulary.train(lines, 290).to_json() for lines in permutations(LINES)}
    assert len(found) == 1


def test_the_size_and_the_lines_change_it() -> None:
    found = {Vocabulary.train(lines, size).to_json() for lines in (LINES, LINES[:3]) for size in (262, 265)}
    assert len(found) == 4


def test_it_survives_being_written_down() -> None:
    for vocabulary in (Vocabulary.train(LINES, 300), Vocabulary.of_words(LINES)):
        again = Vocabulary.from_json(vocabulary.to_json())
        assert len(again) == len(vocabulary)
        assert [again.encode(line) for line in LINES + ODD] == [vocabulary.encode(line) for line in LINES + ODD]
        assert again.to_json() == vocabulary.to_json()


def test_whole_words_worked_by_hand() -> None:
    vocabulary = Vocabulary.of_words(["b a", "c"])
    assert len(vocabulary) == 7
    assert vocabulary.encode("a c b z") == [4, 6, 5, UNK]
    assert vocabulary.decode([BOS, 4, 6, 5, EOS]) == "a c b"
    assert vocabulary.pieces([4, EOS]) == ["a", "<eos>"]


def test_copying_has_one_token_a_symbol() -> None:
    config = TextDataConfig(name="copying", copying_sentences=500, copying_symbols=13)
    train, val = open_training(config)
    vocabularies = Vocabularies.train(train, config)
    assert vocabularies.shared
    assert len(vocabularies.source) == 17
    for line in [*train.sources[:20], *val.sources[:20]]:
        tokens = vocabularies.source.encode(line)
        assert len(tokens) == len(line.split())
        assert vocabularies.target.decode(tokens) == line


def test_shared_or_one_a_language() -> None:
    split = split_of(PAIRS["train"] * 3)
    shared = Vocabularies.train(split, TextDataConfig(vocabulary_size=280))
    apart = Vocabularies.train(split, TextDataConfig(vocabulary_size=280, shared_vocabulary=False))
    assert (shared.shared, apart.shared) == (True, False)
    assert apart.source.to_json() == Vocabulary.train(split.sources, 280).to_json()
    assert apart.target.to_json() == Vocabulary.train(split.targets, 280).to_json()
    assert shared.source.to_json() == Vocabulary.train(split.sources + split.targets, 280).to_json()
    for vocabularies in (shared, apart):
        again = Vocabularies.from_json(vocabularies.to_json())
        assert again.shared == vocabularies.shared
        assert again.source.to_json() == vocabularies.source.to_json()
        assert again.target.to_json() == vocabularies.target.to_json()
        assert vocabularies.numbers_as(json.dumps(json.loads(vocabularies.to_json()), indent=1))
    assert not shared.numbers_as(apart.to_json())


def test_a_missing_library_is_one_line_saying_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name == "tokenizers":
            raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"'tokenizers' is not installed: pip install \"vit\[text\]\"$"):
        Vocabulary.train(LINES, 300)
    with pytest.raises(ZeroDivisionError), text_extra():
        _ = 1 / 0


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs Multi30k under ../shared/data")
@pytest.mark.slow
def test_every_line_of_multi30k_comes_back() -> None:
    config = TextDataConfig(root=str(MULTI30K), test_parts=("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"))
    train = open_parts(config, ["train"])
    vocabulary = Vocabularies.train(train, config).source
    assert len(vocabulary) == 8000
    for split in (train, open_parts(config, ["val"]), open_test(config)):
        for line in (*split.sources, *split.targets):
            assert vocabulary.decode(vocabulary.encode(line)) == line


def test_the_letters_of_a_special_token_are_an_unknown_word() -> None:
    vocabulary = Vocabulary.of_words(["b a", "c"])
    before, special, behind = vocabulary.encode("a <eos> c")
    assert special == UNK
    assert vocabulary.decode([before, behind]) == "a c"
