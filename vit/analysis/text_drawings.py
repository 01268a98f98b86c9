"""What is drawn of a translator: every head's map of one sentence, and what its heads do on many; one page.

The decoder reads the reference translation, so that models are looked at on the same words. Knows no image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from vit.analysis.picture import Picture
from vit.analysis.report import save_picture, title
from vit.analysis.text_attention import CONVENTIONS, TextAttention, translator_attention
from vit.config import TranslationRun, check
from vit.data.text import open_test
from vit.data.text_loading import EncodedSplit, TextBatch
from vit.data.vocabulary import Vocabularies
from vit.evaluation.html_page import document, figure, text
from vit.figures.alignment import alignment
from vit.figures.heads_by_depth import HeadValues, heads_by_depth
from vit.figures.text_heads import text_heads
from vit.hub import load_translator
from vit.settings import check_overrides, override, run_config_from

KINDS = {
    "encoder": ("the source's tokens", "the source's tokens"),
    "decoder": ("the translation's tokens so far", "those before them and themselves"),
    "cross": ("the translation's tokens", "the source's"),
    "alignment": ("the translation's next token", "the source's"),
}
"""Who asks whom."""
TITLES = {"encoder": "encoder", "decoder": "decoder, causal", "cross": "cross-attention"}
QUANTITIES = {
    "entropy": "entropy (nats)",
    "distance": "distance (tokens)",
    "self_mass": "weight on the token itself",
    "first_mass": "weight on the first token",
    "last_mass": "weight on the last token",
}


def draw_translator(
    run: Path,
    folder: Path,
    *,
    settings: Sequence[str] = (),
    num_sentences: int = 64,
    select: str = "best",
    tell: Callable[[str], None] = print,
) -> list[str]:
    """The names of the figures drawn into `folder/figures`, beside them their numbers; `folder/analysis.html`.

    The first sentences of the run's test set, or of that which `settings` (`--data.root=…`) name. ValueError for a
    translator without attention.
    """
    check(num_sentences > 0, "--images", num_sentences, "it must be above 0")
    model, state = load_translator(run, select)
    trained = run_config_from(state["config"])
    assert isinstance(trained, TranslationRun)
    check_overrides(trained, settings, ("data",), {})
    config = override(trained, settings)
    assert isinstance(config, TranslationRun)
    vocabularies = Vocabularies.from_json(state["task"]["vocabularies"])
    encoded = EncodedSplit.encode(open_test(config.data), vocabularies)
    chosen = torch.arange(min(num_sentences, len(encoded)))
    batch = encoded.batch(chosen, positions=chosen, weights=torch.ones(len(chosen)))
    found = translator_attention(
        model, batch.source, batch.source_lengths, batch.target[:, :-1], batch.target_lengths - 1
    )
    pictures = translator_pictures(found, batch, vocabularies)
    body = [f"<h1>Inside {text(run.name)}</h1>", f'<p class="about">{len(chosen)} sentences of the test set.</p>']
    for name, picture in pictures.items():
        save_picture(picture, folder / "figures" / name)
        body += [f"<h2>{text(title(name))}</h2>", figure(folder / "figures" / f"{name}.png", picture.words)]
        tell(name)
    (folder / "analysis.html").write_text(document(f"Inside {run.name}", body), encoding="utf-8")
    return list(pictures)


def translator_pictures(found: TextAttention, batch: TextBatch, vocabularies: Vocabularies) -> dict[str, Picture]:
    """By name: for each kind of attention the maps of the first sentence and the statistics of all."""
    source = vocabularies.source.pieces(batch.source[0, : batch.source_lengths[0]].tolist())
    target = vocabularies.target.pieces(batch.target[0, : batch.target_lengths[0]].tolist())
    pictures = {}
    for kind, maps in found.maps.items():
        queries, keys = source if kind == "encoder" else target[:-1], target[:-1] if kind == "decoder" else source
        shown = maps[:, 0, :, : len(queries), : len(keys)]
        drawn = (
            alignment(shown[0, 0], keys, target[1:])
            if kind == "alignment"
            else text_heads(shown, queries, keys, TITLES[kind])
        )
        numbers = {"maps": shown, "queries": queries, "keys": keys, "conventions": CONVENTIONS}
        if kind == "alignment":  # one head of one layer: numbers, and no figure
            numbers["statistics"] = {**found.statistics()[kind], "sentences": len(batch.indices)}
        who, whom = KINDS[kind]
        words = f"Where {who} (down) look among {whom} (across), in the first sentence."
        pictures[f"{kind}_maps"] = Picture(figure=drawn, numbers=numbers, words=words)
        if kind != "alignment":
            pictures[f"{kind}_statistics"] = _statistics(found, kind, len(batch.indices))
    return pictures


def _statistics(found: TextAttention, kind: str, num_sentences: int) -> Picture:
    statistics = found.statistics()[kind]
    names = [name for name in QUANTITIES if name in statistics]
    panels = [HeadValues(values=statistics[name], label=QUANTITIES[name]) for name in names]
    return Picture(
        figure=heads_by_depth(panels, [""] * len(panels)),
        numbers={**statistics, "sentences": num_sentences, "conventions": CONVENTIONS},
        words=f"Each head on average over the real tokens of {num_sentences} sentences.",
    )
