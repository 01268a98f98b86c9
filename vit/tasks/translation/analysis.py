"""`vit analyze` of a translator: every head's map of one sentence, and statistics of its heads on many; one page.

The decoder reads the reference translation, so that models are looked at on the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from vit.analysis.analysis_figure import AnalysisFigure
from vit.analysis.capture import AttentionLayer, capturing
from vit.analysis.report import STATE, analysis_title, begun_analysis
from vit.analysis.text_attention import CONVENTIONS, TextAttention, capture_text_attention
from vit.config import RunConfig, check
from vit.evaluation.evaluate import evaluating
from vit.evaluation.html_page import html_document, html_figure, html_text
from vit.figures.alignment import plot_alignment
from vit.figures.heads_by_depth import HeadValues, plot_heads_by_depth
from vit.figures.text_heads import plot_text_heads
from vit.hub import model_digest
from vit.runs import write_json
from vit.tasks.translation.config import TranslationRun
from vit.tasks.translation.loading import EncodedSplit, TextBatch
from vit.tasks.translation.recurrent import RecurrentTranslator
from vit.tasks.translation.text import fingerprint, open_test
from vit.tasks.translation.text_transformer import TextTransformer
from vit.tasks.translation.translator import load_translator
from vit.tasks.translation.vocabulary import Vocabularies
from vit.versions import computing_versions

KINDS = {
    "encoder": ("the source's tokens", "the source's tokens"),
    "decoder": ("the translation's tokens so far", "those before them and themselves"),
    "cross": ("the translation's tokens", "the source's"),
    "alignment": ("the translation's next token", "the source's"),
}
"""Kind of attention → queries, keys."""
TITLES = {"encoder": "encoder", "decoder": "decoder, causal", "cross": "cross-attention"}
HEALTHY = {
    "encoder": "In a trained encoder some heads look at the token beside their own, others follow the sentence's "
    "syntax (Voita et al. 2019).",
    "decoder": "In a trained decoder heads differ; one whose weight piles up on the first token adds little (Clark et "
    "al. 2019, of BERT's separators).",
    "cross": "In a trained translator one head at least follows the source word by word; where all rows look alike, "
    "the translation is made without the source.",
    "alignment": "In a trained translator each word looks at the one that it translates: near the diagonal, and off "
    "it where the languages order words otherwise (Bahdanau et al. 2015, figure 3).",
}
"""The pattern that a trained model's attention shows, by kind."""
QUANTITIES = {
    "entropy": "entropy (nats)",
    "distance": "distance (tokens)",
    "self_mass": "weight on the token itself",
    "first_mass": "weight on the first token",
    "last_mass": "weight on the last token",
}


def analyze_run(
    run: Path,
    config: RunConfig,
    folder: Path,
    *,
    select: str = "best",
    num_samples: int = 64,
    progress: Callable[[str], None] = print,
) -> list[str]:
    """The names of the figures drawn into `folder/figures`, beside them their numbers; `folder/analysis.html`, and in
    `folder/analysis.json` what they were made of.

    The first sentences of the test set of `config`. ValueError for a translator without attention.
    """
    assert isinstance(config, TranslationRun)
    check(num_samples > 0, "--images", num_samples, "it must be above 0")
    trained = load_translator(run, select)
    encoded = EncodedSplit.encode(open_test(config.data), trained.vocabularies)
    chosen = torch.arange(min(num_samples, len(encoded)))
    batch = encoded.batch(chosen, positions=chosen, weights=torch.ones(len(chosen)))
    found = translator_attention(
        trained.model, batch.source, batch.source_lengths, batch.target[:, :-1], batch.target_lengths - 1
    )
    pictures = translator_pictures(found, batch, trained.vocabularies)
    made_of = {
        "model": run.name,
        "weights": model_digest(trained.model),
        "sentences": fingerprint(encoded.text),
        "chosen": len(chosen),
        "versions": computing_versions(),
    }
    state = begun_analysis(made_of, folder)
    body = [f"<h1>Inside {html_text(run.name)}</h1>", f'<p class="about">{len(chosen)} sentences of the test set.</p>']
    for name, picture in pictures.items():
        picture.save(folder / "figures" / name)
        state["pictures"][name] = picture.caption
        body += [
            f"<h2>{html_text(analysis_title(name))}</h2>",
            html_figure(folder / "figures" / f"{name}.png", picture.caption),
        ]
        progress(name)
    write_json(folder / STATE, state)
    (folder / "analysis.html").write_text(html_document(f"Inside {run.name}", body), encoding="utf-8")
    return list(pictures)


@torch.no_grad()
def translator_attention(
    model: TextTransformer | RecurrentTranslator,
    source: Tensor,
    source_lengths: Tensor,
    target: Tensor,
    target_lengths: Tensor,
) -> TextAttention:
    """Attention of a translator reading `source` `b n` and `target` `b m`; lengths count the real tokens of each, (b,).

    ValueError for a model without attention, and for what `capturing` and `capture_text_attention` refuse.
    """
    from_source, from_target = source_lengths.cpu(), target_lengths.cpu()
    with evaluating(model):
        if isinstance(model, RecurrentTranslator):
            weights = model.alignment(source, source_lengths, target)[None, :, None]  # l b h m n
            return TextAttention(maps={"alignment": weights.cpu()}, lengths={"alignment": (from_target, from_source)})
        maps: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}

        def consume(layer: AttentionLayer) -> None:
            maps[layer.name.partition(".")[0]].append(layer.weights().cpu())

        cross: list[Tensor] = []
        with capturing(model, consume), capture_text_attention(model, cross.append):
            model(source, source_lengths, target)
    return TextAttention(
        maps={"cross": torch.stack(cross).cpu(), **{kind: torch.stack(found) for kind, found in maps.items()}},
        lengths={
            "cross": (from_target, from_source),
            "encoder": (from_source, from_source),
            "decoder": (from_target, from_target),
        },
    )


def translator_pictures(
    found: TextAttention, batch: TextBatch, vocabularies: Vocabularies
) -> dict[str, AnalysisFigure]:
    """By name: for each kind of attention the maps of the first sentence and the statistics of all."""
    source = vocabularies.source.pieces(batch.source[0, : batch.source_lengths[0]].tolist())
    target = vocabularies.target.pieces(batch.target[0, : batch.target_lengths[0]].tolist())
    pictures = {}
    for kind, maps in found.maps.items():
        queries, keys = source if kind == "encoder" else target[:-1], target[:-1] if kind == "decoder" else source
        shown = maps[:, 0, :, : len(queries), : len(keys)]
        drawn = (
            plot_alignment(shown[0, 0], keys, target[1:])
            if kind == "alignment"
            else plot_text_heads(shown, queries, keys, TITLES[kind])
        )
        numbers = {"maps": shown, "queries": queries, "keys": keys, "conventions": CONVENTIONS}
        if kind == "alignment":  # one head of one layer: numbers, and no figure
            numbers["statistics"] = {**found.statistics()[kind], "sentences": len(batch.indices)}
        queries_of, keys_of = KINDS[kind]
        caption = (
            f"Where {queries_of} (down) look among {keys_of} (across), in the first sentence: from white, a weight of "
            f"0, to dark blue, 1. {HEALTHY[kind]}"
        )
        pictures[f"{kind}_maps"] = AnalysisFigure(figure=drawn, numbers=numbers, caption=caption)
        if kind != "alignment":
            pictures[f"{kind}_statistics"] = _statistics_figure(found, kind, len(batch.indices))
    return pictures


def _statistics_figure(found: TextAttention, kind: str, num_sentences: int) -> AnalysisFigure:
    statistics = found.statistics()[kind]
    names = [name for name in QUANTITIES if name in statistics]
    panels = [HeadValues(values=statistics[name], label=QUANTITIES[name]) for name in names]
    return AnalysisFigure(
        figure=plot_heads_by_depth(panels, [""] * len(panels)),
        numbers={**statistics, "sentences": num_sentences, "conventions": CONVENTIONS},
        caption=f"Each head on average over the real tokens of {num_sentences} sentences. {HEALTHY[kind]}",
    )
