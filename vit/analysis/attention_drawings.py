"""Figures of a model's attention: which numbers, by which function, in which words. Draws nothing itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from einops import rearrange

from vit.analysis.attention_distance import PREFIXES, distance_of
from vit.analysis.attention_maps import attention_maps, relevance
from vit.analysis.attention_profile import QUANTITIES
from vit.analysis.parts import covered
from vit.analysis.picture import Picture
from vit.analysis.subjects import Subject
from vit.figures import attention_maps as map_figures
from vit.figures.heads_by_depth import HeadValues, heads_by_depth, sorted_heads

SHOWN = 4
"""Images in a sheet of overlays."""
ENOUGH_FOR_BARS = 8
"""Images from which on intervals are drawn; of fewer they are as wide as the picture."""
MOST_ROWS = 6
"""Layers whose head maps are shown, evenly chosen."""


def attention_distance(subject: Subject) -> Picture:
    found = distance_of(subject.profile)
    panel = HeadValues(
        values=found.pixels,
        label="mean attention distance (pixels)",
        margin=found.margin if found.num_images >= ENOUGH_FOR_BARS else None,
        reference=found.uniform,
        reference_label="uniform attention",
    )
    others = {name: distance_of(subject.profile, prefix=name) for name in ("raw", "kept")}
    numbers = found.numbers()
    for name, other in others.items():
        numbers[name] = {"pixels": other.pixels.tolist(), "uniform_pixels": other.uniform, "convention": PREFIXES[name]}
    words = (
        f"Mean attention distance of each head over {found.num_images} images. "
        f"Uniform attention: {found.uniform:.2f} pixels."
    )
    if subject.profile.layout.num_prefix:
        words += (
            f" Convention: {found.convention}. Class tokens get {float(found.class_mass.mean()):.1%} of the patches' "
            f"attention, all tokens without a place {float(found.prefix_mass.mean()):.1%}: without making the rest sum "
            f"to 1, the mean of {float(found.pixels.mean()):.1f} pixels would be "
            f"{float(others['raw'].pixels.mean()):.1f}."
        )
    if found.num_images >= ENOUGH_FOR_BARS:
        words += " Bars: 95 % intervals over images."
    return Picture(figure=heads_by_depth([panel]), numbers=numbers, words=words, rows=profile_rows(subject))


def attention_distance_sorted(subject: Subject) -> Picture:
    found = distance_of(subject.profile)
    panel = HeadValues(
        values=found.pixels,
        label="mean attention distance (pixels)",
        reference=found.uniform,
        reference_label="uniform attention",
    )
    words = "The same distances, the heads of each layer sorted (Raghu et al. 2021, figure 3)."
    return Picture(figure=sorted_heads(panel), numbers=found.numbers(), words=words)


def attention_entropy(subject: Subject) -> Picture:
    profile, layout = subject.profile, subject.profile.layout
    log_tokens = math.log(layout.num_patches + layout.num_prefix)
    panels = {
        "entropy": HeadValues(
            values=profile.mean("entropy"),
            label="entropy (nats)",
            reference=log_tokens,
            reference_label="uniform attention",
        ),
        "diagonal": HeadValues(values=profile.mean("self_mass"), label="weight of a patch on itself"),
    }
    if layout.has_class_token:
        panels["class token"] = HeadValues(values=profile.mean("class_mass"), label="weight on the class token")
    if layout.num_prefix > int(layout.has_class_token):
        panels["class token, registers"] = HeadValues(values=profile.mean("prefix_mass"), label="weight on non-patches")
    numbers: dict[str, Any] = {
        name: profile.mean(name) for name in ("entropy", "self_mass", "class_mass", "prefix_mass")
    }
    numbers |= {"uniform_entropy": log_tokens, "images": profile.num_images, "layers": list(profile.layers)}
    return Picture(
        figure=heads_by_depth(list(panels.values()), list(panels)),
        numbers=numbers | {"conventions": {**QUANTITIES, "mean": "over the patches as queries, then over images"}},
        words=f"Entropy of the weights, and what a patch gives to itself and to tokens that are no patches; means over "
        f"{profile.num_images} images.",
    )


def profile_rows(subject: Subject) -> list[dict[str, Any]]:
    """A line a head: every quantity and its interval."""
    profile = subject.profile
    values = {name: (profile.mean(name), profile.margin(name)) for name in QUANTITIES}
    return [
        {"layer": layer + 1, "head": head + 1, "module": name}
        | {key: float(mean[layer, head]) for key, (mean, _) in values.items()}
        | {f"{key}.margin": float(margin[layer, head]) for key, (_, margin) in values.items()}
        for layer, name in enumerate(profile.layers)
        for head in range(profile.sums.shape[2])
    ]


def head_maps(subject: Subject) -> Picture:
    found = attention_maps(subject.model, subject.first(1))
    depth = len(found.maps)
    layers = np.unique(np.linspace(0, depth - 1, min(depth, MOST_ROWS)).round().astype(int)).tolist()
    image = rearrange(covered(subject.model, subject.images.pixels[0]), "c h w -> h w c")
    whose = {"class": "the class token looks", "patches": "the patches look, on average,"}[str(found.query)]
    return Picture(
        figure=map_figures.head_maps(image, found.maps[layers, 0], [layer + 1 for layer in layers]),
        numbers={**found.numbers(), "images": subject.images.names[:1]},
        words=f"Where {whose} in {subject.images.names[0]}, by block (down) and head (across); each map to its "
        "own greatest weight.",
    )


def overlays(subject: Subject) -> Picture:
    images = subject.first(SHOWN)
    found = attention_maps(subject.model, images)
    maps = {"last layer": found.maps[-1].mean(dim=1), "rollout": found.rollout}
    numbers = {"rollout": found.rollout, "last_layer": maps["last layer"], "images": subject.images.names[:SHOWN]}
    conventions = dict(found.numbers()["conventions"])
    words = "The last layer's heads on average, rollout (Abnar and Zuidema 2020)"
    try:
        relevant = relevance(subject.model, images)
        maps["relevance"] = relevant.maps
        numbers |= {"relevance": relevant.maps, "classes": relevant.classes}
        words += " and relevance to the class that the model answers (Chefer et al. 2021)."
    except ValueError as error:
        words += f". No relevance: {error}."
    pictures = rearrange(covered(subject.model, subject.images.pixels[:SHOWN]), "b c h w -> b h w c")
    return Picture(
        figure=map_figures.attention_overlays(pictures, maps),
        numbers=numbers | {"conventions": conventions},
        words=words,
    )
