"""Figures of a model's attention with their numbers and captions."""

from __future__ import annotations

from vit.analysis.analysis_figure import AnalysisFigure
from vit.analysis.attention_distance import PREFIXES, AttentionDistance, distance_from_profile
from vit.analysis.examples import choose_examples
from vit.analysis.maps import CONVENTIONS, attention_maps, relevance
from vit.analysis.profile import ENOUGH_FOR_BARS, QUANTITIES
from vit.analysis.targets import AnalysisTarget
from vit.analysis.unsupported import Unsupported

BARS = " Bars: 95 % intervals over images."
MARGIN = "half of the 95 % interval of the mean over images (Student's t)"
NUM_OVERLAYS = 4
"""Images in a sheet of overlays."""


def attention_distance(target: AnalysisTarget) -> AnalysisFigure:
    found = distance_from_profile(target.profile)
    others = {name: distance_from_profile(target.profile, prefix=name) for name in ("raw", "kept")}
    numbers = found.numbers()
    for name, other in others.items():
        numbers[name] = {"pixels": other.pixels.tolist(), "uniform_pixels": other.uniform, "convention": PREFIXES[name]}
    caption = (
        f"Mean attention distance of each head over {found.num_images} images. "
        f"Uniform attention: {found.uniform:.2f} pixels."
    )
    if target.profile.layout.num_prefix:
        caption += (
            f" Convention: {found.convention}. Class tokens get {float(found.class_mass.mean()):.1%} of the patches' "
            f"attention, all tokens without a place {float(found.prefix_mass.mean()):.1%}: without making the rest sum "
            f"to 1, the mean of {float(found.pixels.mean()):.1f} pixels would be "
            f"{float(others['raw'].pixels.mean()):.1f}."
        )
    if found.num_images >= ENOUGH_FOR_BARS:
        caption += BARS
    caption += (
        " A healthy ViT has near and far heads in its first blocks and mostly far ones in its last (ViT, figure 7)."
    )
    return AnalysisFigure(figure=found.plot(), numbers=numbers, caption=caption, table=target.profile.rows())


def attention_distance_sorted(target: AnalysisTarget) -> AnalysisFigure:
    found = distance_from_profile(target.profile)
    caption = "The same distances, the heads of each block sorted."
    against: AttentionDistance | None = None
    if target.against is not None:
        try:
            against = distance_from_profile(target.against.profile)
            caption = f"The heads of each block of {target.name} and {target.against.name}, sorted by distance."
        except Unsupported as error:
            caption += f" Not beside those of {target.against.name}: {error}."
    if found.num_images >= ENOUGH_FOR_BARS:
        caption += " Bars: 95 % intervals, bootstrap over images."
    caption += (
        " A healthy ViT has near heads beside far ones in its first blocks; trained on too few images, it lacks the "
        "near ones (Raghu et al. 2021, figures 3 and 4)."
    )
    numbers = found.sorted_numbers()
    if against is not None and target.against is not None:
        numbers["against"] = {"model": target.against.name, **against.sorted_numbers()}
    titles = (target.name, target.against.name) if target.against is not None and against is not None else ("",)
    return AnalysisFigure(
        figure=found.plot(sort_heads=True, against=against, titles=titles), numbers=numbers, caption=caption
    )


def attention_entropy(target: AnalysisTarget) -> AnalysisFigure:
    profile = target.profile
    names = ("entropy", "self_mass", "class_mass", "prefix_mass")
    numbers = {
        **{name: profile.mean(name) for name in names},
        "margin": {name: profile.margin(name) for name in names},
        "uniform_entropy": profile.uniform_entropy,
        "images": profile.num_images,
        "layers": list(profile.layers),
        "conventions": {**QUANTITIES, "mean": "over the patches as queries, then over images", "margin": MARGIN},
    }
    caption = (
        "Entropy of the weights, and what a patch gives to itself and to tokens that are no patches; means over "
        f"{profile.num_images} images."
    )
    if profile.num_images >= ENOUGH_FOR_BARS:
        caption += BARS
    caption += (
        " In a healthy ViT heads differ, in the first blocks most; one at 0 looks at a single token always, one at the "
        "dashed line everywhere alike (Clark et al. 2019, figure 4, on BERT)."
    )
    return AnalysisFigure(figure=profile.plot(), numbers=numbers, caption=caption)


def attention_heads(target: AnalysisTarget) -> AnalysisFigure:
    found = attention_maps(target.model, target.first(1))
    whose = {"class": "the class token looks", "patches": "the patches look, on average,"}[str(found.query)]
    return AnalysisFigure(
        figure=found.plot(pixels=target.images.pixels),
        numbers={**found.numbers(), "images": target.images.names[:1]},
        caption=f"Where {whose} in {target.images.names[0]}, by block (down) and head (across); each map to its "
        "own greatest weight. In a healthy ViT the heads of a block look at different things, in the last blocks at "
        "objects; the same few bright patches in all of them are artefacts (Darcet et al. 2024).",
    )


def attention_overlays(target: AnalysisTarget) -> AnalysisFigure:
    shown = choose_examples(target, NUM_OVERLAYS)
    images = target.normalized(shown.places)
    found = attention_maps(target.model, images)
    last = found.overlays()["last block"]
    names = [target.images.names[place] for place in shown.places]
    numbers = {"rollout": found.rollout, "last_layer": last, "images": names, "titles": shown.titles}
    others = {}
    caption = "The heads of the last block on average, rollout (Abnar and Zuidema 2020)"
    try:
        if not target.has_head:
            raise Unsupported("the model has no head, whose class the patches could be relevant to")
        relevant = relevance(target.model, images)
        others["relevance"] = relevant.maps
        numbers |= {"relevance": relevant.maps, "classes": relevant.classes}
        caption += " and relevance to the predicted class (Chefer et al. 2021)."
    except Unsupported as error:
        caption += f". No relevance: {error}."
    caption += f" Images: {target.images.source}. Each map is coloured from its own least to its own greatest value."
    caption += " In a healthy ViT the bright patches lie on the objects and not scattered over the background."
    return AnalysisFigure(
        figure=found.plot_overlays(others, pixels=target.images.pixels[shown.places], titles=shown.titles),
        numbers=numbers | {"conventions": CONVENTIONS | {"images": shown.convention}},
        caption=caption,
    )
