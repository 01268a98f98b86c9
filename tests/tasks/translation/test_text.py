from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.translation.text_files import PAIRS, make_set, write_lines
from vit.tasks.translation.config import TextDataConfig
from vit.tasks.translation.text import (
    LONGEST_LINE,
    TextSplit,
    check_test,
    fingerprint,
    open_parts,
    open_test,
    open_training,
)

MULTI30K = Path("../shared/data/multi30k")


def config_for(root: Path, **settings: Any) -> TextDataConfig:
    return TextDataConfig(root=str(root), **settings)


def pairs(split: TextSplit) -> list[tuple[str, str]]:
    return list(zip(split.sources, split.targets, strict=True))


def test_lines_are_as_the_files_hold_them(tmp_path: Path) -> None:
    config = config_for(make_set(tmp_path))
    train, val = open_training(config)
    assert pairs(train) == PAIRS["train"]
    assert pairs(val) == PAIRS["val"]
    assert pairs(open_test(config)) == PAIRS["test_2016_flickr"]
    assert len(train) == 4


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    make_set(tmp_path)
    odd = ["a\u2028b", "c\x0bd\x85e", "", "f g "]
    write_lines(tmp_path / "val.de.gz", odd, end="\r\n")
    (tmp_path / "val.en.gz").write_bytes(gzip.compress("\n".join([*odd[:3], "no feed at the end"]).encode()))
    val = open_training(config_for(tmp_path))[1]
    assert val.sources == odd
    assert val.targets == [*odd[:3], "no feed at the end"]


def test_the_languages_may_be_swapped(tmp_path: Path) -> None:
    train, _ = open_training(config_for(make_set(tmp_path), source_language="en", target_language="de"))
    assert pairs(train) == [(english, german) for german, english in PAIRS["train"]]


def test_parts_can_be_pooled_and_every_line_keeps_its_name(tmp_path: Path) -> None:
    config = config_for(make_set(tmp_path), test_parts=("test_2016_flickr", "extra"))
    pooled = open_test(config)
    assert pairs(pooled) == PAIRS["test_2016_flickr"] + PAIRS["extra"]
    assert [pooled.name(index) for index in range(3)] == ["test_2016_flickr:1", "test_2016_flickr:2", "extra:1"]
    assert pairs(open_parts(config, ["extra", "val"])) == PAIRS["extra"] + PAIRS["val"]


def test_a_missing_file_is_named_with_its_place_and_where_to_get_it(tmp_path: Path) -> None:
    config = config_for(make_set(tmp_path))
    (tmp_path / "train.en.gz").unlink()
    with pytest.raises(
        ValueError, match=r"^data\.root: no train\.en\.gz in '.*'; .*https://github\.com/multi30k/\S+"
    ) as e:
        open_training(config)
    assert str(tmp_path) in str(e.value)
    assert "\n" not in str(e.value)


def test_training_does_not_touch_the_test_files_and_they_can_be_asked_for_by_name(tmp_path: Path) -> None:
    config = config_for(make_set(tmp_path))
    check_test(config)
    for language in ("de", "en"):
        (tmp_path / f"test_2016_flickr.{language}.gz").write_bytes(b"not gzip")
    open_training(config)
    check_test(config)
    with pytest.raises(ValueError, match=r"data\.root: .*test_2016_flickr\.de\.gz cannot be read"):
        open_test(config)
    (tmp_path / "test_2016_flickr.en.gz").unlink()
    open_training(config)
    with pytest.raises(ValueError, match=r"no test_2016_flickr\.en\.gz"):
        check_test(config)


def test_sides_of_different_length_are_named_both(tmp_path: Path) -> None:
    config = config_for(make_set(tmp_path))
    write_lines(tmp_path / "val.de.gz", ["eins", "zwei"])
    with pytest.raises(ValueError, match=r"data\.root: .*val\.de\.gz has 2 lines and .*val\.en\.gz has 1;"):
        open_training(config)


DAMAGED = {
    "not gzipped": b"plain text\n",
    "cut short": gzip.compress(b"ab\n" * 500)[:-20],
    "not UTF-8": gzip.compress(b"\xff\xfe"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)  # named: gzipped bytes hold the time of day
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, content: bytes) -> None:
    config = config_for(make_set(tmp_path))
    (tmp_path / "val.en.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.root: .*val\.en\.gz cannot be read as gzipped UTF-8") as caught:
        open_training(config)
    assert "\n" not in str(caught.value)


def test_an_empty_part_is_refused(tmp_path: Path) -> None:
    config = config_for(make_set(tmp_path))
    for language in ("de", "en"):
        write_lines(tmp_path / f"train.{language}.gz", [])
    with pytest.raises(ValueError, match=r"train\.de\.gz holds no line"):
        open_training(config)


def test_the_fingerprint_changes_with_any_line_and_their_order() -> None:
    def digits(*lines: tuple[str, str]) -> str:
        sources, targets = zip(*lines, strict=True)
        return fingerprint(TextSplit(list(sources), list(targets), {"train": len(lines)}))

    kinds = [digits(("a", "b"), ("c", "d")), digits(("c", "d"), ("a", "b")), digits(("a", "b"), ("c", "e"))]
    assert len(set(kinds)) == 3
    assert kinds[0] == digits(("a", "b"), ("c", "d"))
    assert all(len(kind) == 12 for kind in kinds)


COPYING = TextDataConfig(name="copying", copying_sentences=3000, copying_symbols=7, copying_lengths=(3, 12))


def test_copying_is_its_own_translation_and_fixed_for_ever() -> None:
    train, val = open_training(COPYING)
    assert train.targets == train.sources
    assert (len(train), len(val), len(open_test(COPYING))) == (3000, 300, 300)
    assert train.sources[:2] == open_training(COPYING)[0].sources[:2] == ["6 0 5 6 3 3 0 1", "6 6 4 4 2 4 6 1 3 1 3 0"]
    check_test(COPYING)


def test_copying_has_all_symbols_and_all_lengths_alike() -> None:
    words = [line.split() for line in open_training(COPYING)[0].sources]
    lengths = Counter(map(len, words))
    assert set(lengths) == set(range(3, 13))
    assert max(abs(count - 300) for count in lengths.values()) < 4 * 300**0.5
    symbols = Counter(word for row in words for word in row)
    assert set(symbols) == {str(symbol) for symbol in range(7)}
    mean = sum(symbols.values()) / 7
    assert max(abs(count - mean) for count in symbols.values()) < 4 * mean**0.5


def test_every_part_and_seed_of_copying_is_drawn_anew() -> None:
    other = TextDataConfig(name="copying", copying_sentences=3000, copying_symbols=7, copying_seed=1)
    splits = [*open_training(COPYING), open_test(COPYING), open_training(other)[0]]
    assert len({tuple(split.sources[:50]) for split in splits}) == 4


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="needs Multi30k under ../shared/data")
def test_multi30k_is_whole() -> None:
    tests = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
    config = config_for(MULTI30K, test_parts=tests)
    train, val = open_training(config)
    assert (len(train), len(val)) == (29000, 1014)
    assert open_test(config).part_sizes == dict(zip(tests, (1000, 1000, 461), strict=True))
    assert train.sources[0] == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    assert train.targets[0] == "Two young, White males are outside near many bushes."


def test_a_line_that_is_no_sentence_is_named(tmp_path: Path) -> None:
    for length, added in ((LONGEST_LINE, ""), (LONGEST_LINE + 1, "x")):
        root = make_set(tmp_path / str(length), PAIRS | {"train": [("a", "b"), ("c " * 5000 + added, "d")]})
        config = config_for(root)
        if length == LONGEST_LINE:
            assert len(open_training(config)[0]) == 2
            continue
        with pytest.raises(
            ValueError, match=r"line 2 of .*train\.de\.gz has 10,001 characters; .* at most 10,000: divide"
        ):
            open_training(config)
