"""Translations of a split, every sentence once, and the numbers computed from them.

BLEU (Papineni et al. 2002) is sacreBLEU's (Post 2018): cased, on detokenised text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from vit.evaluation.evaluate import Autocast, Gather, check_each_once, evaluating, one_process
from vit.runs import replace_atomically
from vit.sharding import is_sharded
from vit.tasks.translation.loading import TextEvalLoader
from vit.tasks.translation.search import beam_search, greedy_search
from vit.tasks.translation.vocabulary import BOS, EOS, Vocabulary, text_extra

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU

LEVEL = 0.95
CONVENTIONS = {
    "bleu": "corpus BLEU in percent, cased, detokenised; the signature says sacreBLEU's settings",
    "nll": "mean over all target tokens, EOS included, of -log p(token | source, tokens before it), nats",
    "perplexity": "exp(nll), of tokens of the model's own vocabulary: compare it between models of one vocabulary only",
    "token_accuracy": "part of the target tokens that are the likeliest, given the true tokens before them",
    "length": "words of the source sentence, between spaces; low ≤ length < high",
    "interval": f"percentile bootstrap over sentences, {LEVEL:.0%}",
}
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff]")
_CHINESE = re.compile("[\u3400-\u9fff]")
"""Thai, Lao, Burmese, Khmer and Japanese syllables; Chinese characters: written without spaces between words."""
_FIELDS = {"index": "indices", "source": "sources", "reference": "references", "hypothesis": "hypotheses"}


@dataclass(frozen=True)
class Translations:
    """n sentences with reference and model translations; indices strictly increasing."""

    indices: list[int]
    sources: list[str]
    references: list[str]
    hypotheses: list[str]

    def __post_init__(self) -> None:
        lengths = {len(column) for column in vars(self).values()}
        assert len(lengths) == 1, "one source, reference and hypothesis an index"
        assert sorted(set(self.indices)) == self.indices, "indices must be strictly increasing"

    def __len__(self) -> int:
        return len(self.indices)

    def select(self, rows: Sequence[int]) -> Translations:
        """Some of the sentences, by increasing place."""
        return Translations(*([column[row] for row in rows] for column in vars(self).values()))

    def save(self, path: str | Path) -> None:
        """Write one JSON object a line; a file of that name is replaced only once the new one is complete."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_atomically(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="\n") as file:
            for values in zip(*vars(self).values(), strict=True):
                print(json.dumps(dict(zip(_FIELDS, values, strict=True)), ensure_ascii=False), file=file)

    @classmethod
    def load(cls, path: str | Path) -> Translations:
        """Read a file that `save` wrote. ValueError: it is missing or something else."""
        try:
            with Path(path).open(encoding="utf-8", newline="\n") as file:
                records = [json.loads(line) for line in file]
            return cls(*([record[field] for record in records] for field in _FIELDS))
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            raise ValueError(f"translations: {str(path)!r} is not a file of translations ({error})") from error


def translate_all(
    model: nn.Module,
    loader: TextEvalLoader,
    vocabulary: Vocabulary,
    *,
    max_length: int,
    device: torch.device,
    beam_size: int = 1,
    length_penalty: float = 0.0,
    autocast: Autocast = nullcontext,
    gather: Gather = one_process,
    progress: Callable[[int], None] | None = None,
) -> Translations:
    """The model's translation of the whole split, at most `max_length` tokens each, the same on every process.

    A beam of 1 is the greedy search, without a length penalty. `vocabulary` is the target's. `gather` joins tensors of
    different lengths over processes; `progress` receives the size of each batch. AssertionError naming sentences that
    were missed or translated twice.
    """
    assert beam_size > 1 or length_penalty == 0, "the greedy search compares no translations of different lengths"
    translator = _unwrapped(model)
    indices: list[int] = []
    hypotheses: list[list[int]] = []
    search = find_search(max_length, beam_size, length_penalty)
    with evaluating(translator), torch.inference_mode():
        for batch in loader:
            source, lengths = batch.source.to(device), batch.source_lengths.to(device)
            with autocast():
                found = search(translator, source, lengths)
            indices += batch.indices.tolist()
            hypotheses += found
            if progress is not None:
                progress(len(found))
    indices, hypotheses = _gather_rows(indices, hypotheses, device, gather)
    check_each_once(torch.tensor(indices, dtype=torch.int64), loader.split.indices)
    text = loader.split.text
    by_index = dict(zip(indices, hypotheses, strict=True))
    decoded = [vocabulary.decode(by_index[index]) for index in range(len(text))]
    return Translations(list(range(len(text))), list(text.sources), list(text.targets), decoded)


def find_search(max_length: int, beam_size: int, length_penalty: float) -> Callable[..., list[list[int]]]:
    """The search of these settings: `model, source, lengths -> targets`."""
    if beam_size == 1:
        return partial(greedy_search, bos=BOS, eos=EOS, max_length=max_length)
    return partial(
        beam_search, bos=BOS, eos=EOS, max_length=max_length, beam_size=beam_size, length_penalty=length_penalty
    )


def _unwrapped(model: nn.Module) -> Any:
    """The translator itself: processes have different numbers of batches, and a wrapper would synchronise at each."""
    assert not is_sharded(model), "a sharded model's processes must all take the same number of forward passes"
    return model.module if isinstance(model, DistributedDataParallel) else model


def _gather_rows(
    indices: list[int], rows: list[list[int]], device: torch.device, gather: Gather
) -> tuple[list[int], list[list[int]]]:
    """The indices and rows of tokens of all processes; rows are gathered as one, with their lengths."""
    flat = [token for row in rows for token in row]
    columns = (indices, [len(row) for row in rows], flat)
    numbers, lengths, tokens = (gather(torch.tensor(c, dtype=torch.int64, device=device)).tolist() for c in columns)
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return numbers, [tokens[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def token_nll(logits: Tensor, target: Tensor, target_lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Per sentence (b,), float32: the sum of -log p over the tokens after BOS, and how many of them are the likeliest.

    logits (b, m - 1, k) of `target[:, :-1]`; target (b, m); tokens beyond a length do not count.
    """
    labels = target[:, 1:]
    counts = torch.arange(labels.shape[1], device=target.device) < target_lengths[:, None] - 1  # b m-1
    losses = cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")  # b m-1
    correct = logits.argmax(dim=-1) == labels
    return torch.where(counts, losses, 0.0).sum(dim=1), (correct & counts).sum(dim=1).float()


def translation_metrics(
    model: nn.Module,
    loader: TextEvalLoader,
    *,
    device: torch.device,
    autocast: Autocast = nullcontext,
    gather: Gather = one_process,
) -> dict[str, float]:
    """`nll`, `perplexity`, `token_accuracy`, `n_seen`, `n_total` of the references, with the true tokens before each.

    AssertionError: sentences were missed or seen twice.
    """
    model = _unwrapped(model)
    indices, scores = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, 3)]
    with evaluating(model), torch.inference_mode():
        for batch in loader:
            indices.append(batch.indices)
            on_device = batch.to(device)
            with autocast():
                logits = model(on_device.source, on_device.source_lengths, on_device.target[:, :-1])
            losses, correct = token_nll(logits, on_device.target, on_device.target_lengths)
            scores.append(torch.stack([losses, correct, on_device.target_lengths - 1], dim=1).cpu())  # b 3
    found, rows = (gather(torch.cat(column).to(device)).cpu() for column in (indices, scores))
    check_each_once(found, loader.split.indices)
    loss, hits, tokens = rows[found.argsort()].double().sum(dim=0)
    nll = loss / tokens
    return {
        "nll": float(nll),
        "perplexity": float(nll.exp()),
        "token_accuracy": float(hits / tokens),
        "n_seen": len(found),
        "n_total": len(loader.split),
    }


def bleu(translations: Translations) -> float:
    """Corpus BLEU in percent, as `bleu_signature` says."""
    metric = _metric(tokenize=tokenisation(translations.references))
    return float(metric.corpus_score(translations.hypotheses, [translations.references]).score)


def tokenisation(references: Sequence[str]) -> str:
    """sacreBLEU's for the references' script: a line without spaces would be one word, and its BLEU 0."""
    for script, name in ((_UNSPACED, "char"), (_CHINESE, "zh")):
        if 2 * sum(script.search(line) is not None for line in references) > len(references):
            return name
    return "13a"


def bleu_signature(references: Sequence[str] = ()) -> str:
    """sacreBLEU's settings, to be stated with a BLEU: references, case, tokenisation, smoothing, version."""
    metric = _metric(tokenize=tokenisation(references))
    metric.corpus_score(["a"], [["a"]])  # the number of references is known only now
    return str(metric.get_signature())


def bleu_by_length(
    translations: Translations, edges: Sequence[int], *, resamples: int = 1000, seed: int = 0
) -> list[dict[str, float]]:
    """BLEU of the sentences of each length, one row a bucket: `low` ≤ words of the source < `high`.

    A row has `low`, `high`, `sentences`, `bleu` and the bootstrap interval `lower`, `upper` (Koehn 2004), NaN for a
    bucket without sentences; sentences beyond the edges are in none. Two models are resampled alike.
    """
    assert len(edges) > 1, "a bucket has two edges"
    assert list(edges) == sorted(set(edges)), "edges must increase"
    words = np.array([len(source.split()) for source in translations.sources])
    statistics = sentence_statistics(translations)
    rows = []
    for place, (low, high) in enumerate(pairwise(edges)):
        chosen = statistics[(low <= words) & (words < high)]
        row: dict[str, float] = {"low": low, "high": high, "sentences": len(chosen)}
        lower, upper = bootstrap_interval(chosen, resamples=resamples, seed=(seed, place))
        rows.append({**row, "bleu": corpus_bleu(chosen), "lower": lower, "upper": upper})
    return rows


def sentence_statistics(translations: Translations) -> NDArray[np.int64]:
    """(n, 10) counts whose sum over sentences decides BLEU: both lengths, matching and all n-grams for n = 1 … 4."""
    # the effective order has no effect on counts; without it sacreBLEU advises against sentences
    metric = _metric(effective_order=True, tokenize=tokenisation(translations.references))
    pairs = zip(translations.hypotheses, translations.references, strict=True)
    scores = [metric.sentence_score(hypothesis, [reference]) for hypothesis, reference in pairs]
    rows = [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]
    return np.array(rows, dtype=np.int64).reshape(-1, 10)


def corpus_bleu(statistics: NDArray[np.int64]) -> float:
    """BLEU in percent of the sentences that have these statistics (n, 10); NaN where there are none."""
    if len(statistics) == 0:
        return float("nan")
    hypothesis, reference, *counts = statistics.sum(axis=0).tolist()
    score = _metric().compute_bleu(counts[:4], counts[4:], hypothesis, reference, smooth_method="exp")
    return float(score.score)


def bootstrap_interval(
    statistics: NDArray[np.int64], *, resamples: int, seed: int | tuple[int, ...]
) -> tuple[float, float]:
    """The 95 % interval of BLEU over resamples of the sentences, with replacement."""
    if len(statistics) == 0:
        return float("nan"), float("nan")
    rng = np.random.default_rng(seed)
    draws = (rng.integers(len(statistics), size=len(statistics)) for _ in range(resamples))
    scores = [corpus_bleu(statistics[draw]) for draw in draws]
    lower, upper = np.quantile(scores, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(lower), float(upper)


def bootstrap_difference(
    ours: NDArray[np.int64], theirs: NDArray[np.int64], *, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % interval of BLEU(ours) − BLEU(theirs) on the same sentences, resampled together (Koehn 2004)."""
    # sacreBLEU's paired bootstrap gives each model's interval and a p value, but no interval of the difference
    assert ours.shape == theirs.shape, "two models are compared on the same sentences"
    rng = np.random.default_rng(seed)
    draws = (rng.integers(len(ours), size=len(ours)) for _ in range(resamples))
    differences = [corpus_bleu(ours[draw]) - corpus_bleu(theirs[draw]) for draw in draws]
    lower, upper = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(lower), float(upper)


def _metric(**options: Any) -> BLEU:
    with text_extra():
        from sacrebleu.metrics import BLEU
    return BLEU(**options)
