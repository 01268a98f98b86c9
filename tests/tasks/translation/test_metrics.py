from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import Barrier, Thread
from typing import Any, TypeVar

import numpy as np
import pytest
import sacrebleu
import torch
from torch import Tensor, nn

from vit.tasks.translation import metrics as translation
from vit.tasks.translation.config import TextDataConfig, TranslatorConfig
from vit.tasks.translation.loading import EncodedSplit, TextEvalLoader
from vit.tasks.translation.metrics import (
    Translations,
    bleu,
    bleu_by_length,
    bleu_signature,
    bootstrap_interval,
    corpus_bleu,
    sentence_statistics,
    token_nll,
    translate_all,
    translation_metrics,
)
from vit.tasks.translation.search import beam_search, greedy_search
from vit.tasks.translation.text import TextSplit, open_training
from vit.tasks.translation.translator import build_translator
from vit.tasks.translation.vocabulary import BOS, EOS, PAD, Vocabularies, Vocabulary

CPU = torch.device("cpu")


@cache
def encoded(count: int) -> tuple[EncodedSplit, Vocabulary]:
    config = TextDataConfig(name="copying", copying_sentences=300, copying_lengths=(1, 9))
    text, _ = open_training(config)
    vocabularies = Vocabularies.train(text, config)
    text = TextSplit(text.sources[:count], text.targets[:count], {"train": count})
    return EncodedSplit.encode(text, vocabularies), vocabularies.target


def loader_of(count: int, **place: int) -> TextEvalLoader:
    return TextEvalLoader(encoded(count)[0], TextDataConfig(eval_batch_size=5), **place)


class Unigrams(nn.Module):
    """The same logits everywhere, learned numbers; only its mode changes them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.linspace(-1, 1, size))
        self.dropout = nn.Dropout(0.5)

    def forward(self, source: Tensor, source_lengths: Tensor, target: Tensor) -> Tensor:
        assert len(source) == len(source_lengths) == len(target)
        return self.dropout(self.logits.expand(*target.shape, -1))


def copy_source(_: nn.Module, source: Tensor, lengths: Tensor, **limits: int) -> list[list[int]]:
    """A search that finds the source itself, EOS and all, cut at `max_length`."""
    assert (limits["bos"], limits["eos"]) == (BOS, EOS)
    return [row[:length][: limits["max_length"]] for row, length in zip(source.tolist(), lengths.tolist(), strict=True)]


@pytest.fixture
def copying_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "greedy_search", copy_source)


T = TypeVar("T")


def in_processes(world_size: int, work: Callable[[int, Callable[[Tensor], Tensor]], T]) -> list[T]:
    """`work(rank, gather)` of every process, as threads that meet at every gather."""
    barrier, parts, results = Barrier(world_size, timeout=20), dict[int, Tensor](), dict[int, T]()

    def run(rank: int) -> None:
        def gather(tensor: Tensor) -> Tensor:
            parts[rank] = tensor
            barrier.wait()
            joined = torch.cat([parts[each] for each in range(world_size)])
            barrier.wait()
            return joined

        results[rank] = work(rank, gather)

    threads = [Thread(target=run, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(world_size)]


@pytest.mark.usefixtures("copying_search")
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [2, 53])
def test_every_sentence_is_translated_once_in_any_number_of_processes(count: int, world_size: int) -> None:
    split, vocabulary = encoded(count)

    def work(rank: Any, gather: Any) -> Any:
        loader = loader_of(count, rank=rank, world_size=world_size)
        return translate_all(Unigrams(9), loader, vocabulary, max_length=99, device=CPU, gather=gather)

    found = in_processes(world_size, work)
    expected = Translations(list(range(count)), split.text.sources, split.text.targets, split.text.sources)
    assert found == [expected] * world_size
    assert bleu(found[0]) == pytest.approx(100)


@pytest.mark.usefixtures("copying_search")
def test_no_translation_is_longer_than_it_may_be() -> None:
    split, vocabulary = encoded(53)
    found = translate_all(Unigrams(9), loader_of(53), vocabulary, max_length=2, device=CPU)
    assert found.hypotheses == [" ".join(line.split()[:2]) for line in split.text.sources]


@pytest.mark.usefixtures("copying_search")
@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda chunks: chunks[1:], "missing indices"), (lambda chunks: [*chunks, chunks[0]], "more than once")],
)
def test_a_missing_or_doubled_sentence_is_named(change: Callable[..., Any], message: str) -> None:
    loader = loader_of(13)
    loader._chunks = change(loader._chunks)
    with pytest.raises(AssertionError, match=message):
        translate_all(Unigrams(9), loader, encoded(13)[1], max_length=9, device=CPU)
    with pytest.raises(AssertionError, match=message):
        translation_metrics(Unigrams(99), loader, device=CPU)


def test_the_search_gets_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def beam(model: Unigrams, _: Tensor, lengths: Tensor, **settings: Any) -> list[list[Any]]:
        calls.append((model.training, torch.is_inference_mode_enabled(), settings))
        return [[] for _ in lengths]

    monkeypatch.setattr(translation, "beam_search", beam)
    model, sizes = Unigrams(9), list[int]()
    options: dict[str, Any] = {"beam_size": 3, "length_penalty": 0.6, "max_length": 7}
    found = translate_all(model, loader_of(6), encoded(6)[1], device=CPU, progress=sizes.append, **options)
    assert calls == [(False, True, {"bos": BOS, "eos": EOS, **options})] * 2
    assert sizes == [5, 1]
    assert found.hypotheses == [""] * 6
    assert model.training
    with pytest.raises(AssertionError, match="greedy"):
        translate_all(model, loader_of(6), encoded(6)[1], max_length=9, length_penalty=0.5, device=CPU)


@pytest.mark.parametrize("name", ["transformer", "rnn"])
@pytest.mark.parametrize("search", [{"beam_size": 1}, {"beam_size": 3, "length_penalty": 0.6}])
def test_a_real_model_translates_as_it_does_each_sentence_alone(name: Any, search: dict[str, Any]) -> None:
    split, vocabulary = encoded(12)
    torch.manual_seed(0)
    size = len(vocabulary)
    config = TranslatorConfig(name=name, width=16, depth=1, dropout_rate=0.5, tie_output=False)
    model = build_translator(config, source_vocabulary=size, target_vocabulary=size).double().train()
    for parameter in model.parameters():  # untrained, yet sentences get different answers
        if parameter.dim() > 1:
            nn.init.normal_(parameter)
    found = translate_all(model, loader_of(12), vocabulary, max_length=6, device=CPU, **search)
    for tokens, hypothesis in zip(split.sources, found.hypotheses, strict=True):
        limits = {"bos": BOS, "eos": EOS, "max_length": 6}
        source, lengths = tokens[None], torch.tensor([len(tokens)])
        find: Any = greedy_search if len(search) == 1 else partial(beam_search, **search)
        alone = find(model.eval(), source, lengths, **limits)
        assert hypothesis == vocabulary.decode(alone[0])
    assert len(set(found.hypotheses)) > 2


def test_token_nll_worked_by_hand() -> None:
    """Two tokens at log 3/4 and log 1/4 of four; the second sentence ends after one."""
    logits = torch.tensor([3.0, 1.0]).log().expand(2, 3, 2)
    target = torch.tensor([[0, 0, 1, 1], [1, 0, 0, 0]])
    losses, correct = token_nll(logits, target, torch.tensor([4, 2]))
    torch.testing.assert_close(losses, -torch.tensor([0.75 * 0.25 * 0.25, 0.75]).log())
    assert correct.tolist() == [1, 1]


def test_what_lies_beyond_the_length_does_not_count() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 6, 11, generator=generator)
    target = torch.randint(11, (3, 7), generator=generator)
    lengths = torch.tensor([7, 4, 2])
    before = token_nll(logits, target, lengths)
    for row, length in enumerate(lengths.tolist()):
        logits[row, length - 1 :] = float("nan")
        target[row, length:] = PAD
    for one, two in zip(before, token_nll(logits, target, lengths), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_metrics_against_a_loop(world_size: int) -> None:
    split, vocabulary = encoded(53)
    log_p = Unigrams(len(vocabulary)).logits.detach().double().log_softmax(0)
    tokens = torch.cat([row[1:] for row in split.targets])

    def work(rank: Any, gather: Any) -> Any:
        loader, model = loader_of(53, rank=rank, world_size=world_size), Unigrams(len(vocabulary))
        found = translation_metrics(model, loader, device=CPU, gather=gather)
        assert model.training
        return found

    for found in in_processes(world_size, work):
        assert found["nll"] == pytest.approx(-float(log_p[tokens].mean()), rel=1e-6)
        assert found["perplexity"] == pytest.approx(np.exp(found["nll"]))
        assert found["token_accuracy"] == pytest.approx(float((tokens == len(vocabulary) - 1).double().mean()))
        assert (found["n_seen"], found["n_total"]) == (53, 53)


def record(*pairs: tuple[str, str], sources: list[str] | None = None) -> Translations:
    hypotheses, references = zip(*pairs, strict=True)
    return Translations(list(range(len(pairs))), sources or ["x"] * len(pairs), list(references), list(hypotheses))


CAT = ("the cat sat on the mat", "the cat sat on a mat")
SHORT = ("the cat sat on", "the cat sat on a mat")
DOGS = [
    ("The dog bit the man.", "The dog bit the man."),
    ("It wasn't surprising.", "It was not unexpected."),
    ("The man had just bitten him.", "The man bit him first."),
]


def test_bleu_worked_by_hand() -> None:
    """5 of 6 words, 3 of 5 pairs, 2 of 4 threes, 1 of 3 fours; and 4 words for 6."""
    assert bleu(record(CAT)) == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert bleu(record(SHORT)) == pytest.approx(100 * np.exp(1 - 6 / 4))
    assert sentence_statistics(record(CAT, SHORT)).tolist() == [
        [6, 6, 5, 3, 2, 1, 6, 5, 4, 3],
        [4, 6, 4, 3, 2, 1, 4, 3, 2, 1],
    ]


def test_bleu_is_cased_and_of_untokenised_text() -> None:
    assert bleu(record(*DOGS)) == pytest.approx(45.0675, abs=1e-3)  # sacrebleu 2.6 on the command line
    assert bleu(record(("The Cat sat on the mat", "the cat sat on the mat"))) < 80
    assert bleu(record(("the cat sat down .", "the cat sat down."))) == pytest.approx(100)
    assert bleu_signature().startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


@pytest.mark.parametrize(
    ("reference", "near", "name"),
    [
        ("一只黑狗在雪地里奔跑。", "一只黑狗在雪地上奔跑。", "zh"),
        ("黒い犬が雪の中を走っている。", "黒い犬が雪の上を走っている。", "char"),
        ("สุนัขสีดำวิ่งอยู่บนหิมะ", "สุนัขสีดำวิ่งอยู่ในหิมะ", "char"),
        ("검은 개가 눈 위를 달리고 있다.", "검은 개가 눈 속을 달리고 있다.", "13a"),
    ],
)
def test_languages_without_spaces_are_counted_by_characters(reference: str, near: str, name: str) -> None:
    exact, close = record((reference, reference)), record((reference, near))
    assert f"|tok:{name}|" in bleu_signature([reference])
    assert bleu(exact) == pytest.approx(100)
    assert 0 < bleu(close) < 100
    assert corpus_bleu(sentence_statistics(close)) == pytest.approx(bleu(close))


def texts(count: int, seed: int) -> Translations:
    rng = np.random.default_rng(seed)

    def line() -> str:
        return " ".join(rng.choice(list("abcde"), size=rng.integers(1, 12)))

    return record(*((line(), line()) for _ in range(count)), sources=[line() for _ in range(count)])


def test_the_statistics_sum_to_the_corpus_score() -> None:
    for seed in range(5):
        found = texts(40, seed)
        assert corpus_bleu(sentence_statistics(found)) == pytest.approx(bleu(found), rel=1e-12)


def test_the_bootstrap_against_scoring_the_text_again_and_again() -> None:
    found = texts(23, 0)
    rng = np.random.default_rng(5)
    scores = []
    for _ in range(50):
        draw = rng.integers(23, size=23)
        pairs = [[column[row] for row in draw] for column in (found.hypotheses, found.references)]
        scores.append(sacrebleu.corpus_bleu(pairs[0], [pairs[1]]).score)
    interval = bootstrap_interval(sentence_statistics(found), resamples=50, seed=5)
    assert interval == pytest.approx(tuple(np.quantile(scores, [0.025, 0.975])), rel=1e-9)


def test_bleu_by_length_against_scoring_each_bucket() -> None:
    found = texts(90, 1)
    rows = bleu_by_length(found, [1, 4, 8, 12, 15], resamples=200, seed=3)
    assert [(row["low"], row["high"]) for row in rows] == [(1, 4), (4, 8), (8, 12), (12, 15)]
    assert sum(row["sentences"] for row in rows) == 90
    for row in rows[:3]:
        chosen = [i for i in range(90) if row["low"] <= len(found.sources[i].split()) < row["high"]]
        assert row["sentences"] == len(chosen)
        assert row["bleu"] == pytest.approx(bleu(found.select(chosen)))
        assert row["lower"] < row["bleu"] < row["upper"]
    assert rows[3]["sentences"] == 0
    assert np.isnan([rows[3][key] for key in ("bleu", "lower", "upper")]).all()
    assert rows[:3] == bleu_by_length(found, [1, 4, 8, 12], resamples=200, seed=3)
    other = bleu_by_length(found, [1, 4, 8], resamples=200, seed=4)
    assert other[0]["lower"] != rows[0]["lower"]
    assert len(bleu_by_length(found, [2, 3], resamples=2)) == 1


def test_two_models_are_resampled_alike() -> None:
    """The same sentences are drawn for both, so that a model is as far above itself as its answers are."""
    found = texts(60, 2)
    better = Translations(found.indices, found.sources, found.references, found.references)
    rows = [bleu_by_length(one, [1, 20], resamples=100, seed=1)[0] for one in (found, found, better)]
    assert rows[0] == rows[1]
    assert rows[2]["lower"] == pytest.approx(100)


def test_a_file_gives_back_every_character(tmp_path: Path) -> None:
    odd = ["", " a\u2028b ", "line\nfeed\r\n", "\x00 \ufffd 油 🙂", '"quoted" \\']
    before = Translations([3, 5, 7, 8, 11], odd, odd[1:] + odd[:1], odd[::-1])
    path = tmp_path / "deep" / "test.jsonl"
    before.save(path)
    assert Translations.load(path) == before
    assert [entry.name for entry in path.parent.iterdir()] == ["test.jsonl"]
    first = json.loads(path.read_text(encoding="utf-8").split("\n")[0])
    assert first == {"index": 3, "source": "", "reference": odd[1], "hypothesis": odd[4]}


TWICE = 2 * '{"index": 1, "source": "a", "reference": "b", "hypothesis": "c"}\n'


@pytest.mark.parametrize("content", [None, "no json", '{"index": 1}', "[1]", '{"index": 1, "source": "a"\n', TWICE])
def test_a_damaged_file_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "broken.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=r"^translations: .*broken\.jsonl"):
        Translations.load(path)


@pytest.mark.parametrize("indices", [[1, 1], [2, 1], [1]])
def test_a_contradiction_in_the_record_is_refused(indices: list[int]) -> None:
    with pytest.raises(AssertionError):
        Translations(indices, ["a", "b"], ["a", "b"], ["a", "b"])
