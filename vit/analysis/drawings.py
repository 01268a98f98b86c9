"""Every figure of a model: which numbers it shows, by which function, in which words. Draws nothing itself.

A drawing takes a `Subject` and gives a `Picture`; ValueError where the model or the images have not what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from einops import rearrange

from vit.analysis.attention_distance import PREFIXES, distance_of
from vit.analysis.attention_maps import attention_maps, relevance
from vit.analysis.attention_profile import QUANTITIES
from vit.analysis.filters import patch_filters
from vit.analysis.head_ablation import ablate_heads
from vit.analysis.layer_probe import probe_layers
from vit.analysis.parts import answer_of, patch_grid
from vit.analysis.position_similarity import position_similarity
from vit.analysis.receptive_field import effective_receptive_field
from vit.analysis.representation_similarity import representation_similarity
from vit.analysis.residual_streams import residual_streams
from vit.analysis.subjects import Subject, part_of
from vit.config import check
from vit.data.images import open_test, open_training
from vit.data.loading import EvalLoader
from vit.evaluation.evaluate import evaluating
from vit.figures import attention_maps as map_figures
from vit.figures import head_ablation as ablation_figure
from vit.figures import layer_probe as probe_figure
from vit.figures import patch_filters as filter_figure
from vit.figures import position_similarity as position_figure
from vit.figures import receptive_field as field_figure
from vit.figures import representation_similarity as alignment_figure
from vit.figures import residual_streams as stream_figure
from vit.figures.heads_by_depth import HeadValues, heads_by_depth, sorted_heads
from vit.figures.style import Figure

SHOWN = 4
"""Images in a sheet of overlays."""
IMAGES_OF_GRADIENTS = 8
"""Images of the receptive field, which needs a backward pass for every block."""
TRAINING_IMAGES = 4
"""For one test image of a probe."""
MOST_ROWS = 12
"""Layers whose head maps are shown, evenly chosen."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A figure, the numbers behind it, and a table of them where one says it better."""

    figure: Figure
    numbers: dict[str, Any]
    words: str
    rows: Sequence[dict[str, Any]] = field(default_factory=tuple)


Draw = Callable[[Subject], Picture]


# ------------------------------------------------------------------ statistics of the weights


def attention_distance(subject: Subject) -> Picture:
    found = distance_of(subject.profile)
    panel = HeadValues(
        values=found.pixels,
        label="mean attention distance (pixels)",
        margin=found.margin,
        reference=found.uniform,
        reference_label="uniform attention",
    )
    others = {name: distance_of(subject.profile, prefix=name) for name in ("raw", "kept")}
    numbers = found.numbers()
    for name, other in others.items():
        numbers[name] = {"pixels": other.pixels.tolist(), "uniform_pixels": other.uniform, "convention": PREFIXES[name]}
    words = (
        f"Mean attention distance of each head over {found.num_images} images; {found.convention}. "
        f"Uniform attention: {found.uniform:.2f} pixels. The class token gets {float(found.class_mass.mean()):.1%} of "
        f"the patches' attention, all tokens without a place {float(found.prefix_mass.mean()):.1%}: without making the "
        f"rest sum to 1, the mean of {float(found.pixels.mean()):.1f} pixels would be "
        f"{float(others['raw'].pixels.mean()):.1f}."
    )
    if found.num_images > 1:
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


# ------------------------------------------------------------------ weights alone


def positions(subject: Subject) -> Picture:
    """Of the kind that the model has; of two kinds, the first is drawn and both are told."""
    height, width = subject.preprocessing.image_size
    grid = patch_grid(subject.model, (height, width))
    found = position_similarity(subject.model, grid)
    kind, similarity = next(iter(found.items()))
    larger = position_similarity(subject.model, (grid[0] * 3 // 2, grid[1] * 3 // 2))
    numbers = {name: each.numbers() for name, each in found.items()}
    resized = {name: each.numbers() for name, each in larger.items()}
    rows, columns, tiles = similarity.tiles()
    words = (
        f"Cosine similarity of the position of each patch with all others ({kind}): with the distance on the grid it "
        f"correlates by {similarity.distance_correlation:+.3f}; rows explain {similarity.row_share:.1%} of it, columns "
        f"{similarity.column_share:.1%} (by chance {numbers[kind]['chance_row_share']:.1%} and "
        f"{numbers[kind]['chance_column_share']:.1%}). Resized to {larger[kind].grid[0]}×{larger[kind].grid[1]}: "
        f"{larger[kind].distance_correlation:+.3f}, {larger[kind].row_share:.1%}, {larger[kind].column_share:.1%}."
    )
    conventions = numbers[kind]["conventions"]
    return Picture(
        figure=position_figure.position_similarity(tiles, rows, columns),
        numbers={"positions": numbers, "resized": resized, "conventions": conventions},
        words=words,
    )


def filters(subject: Subject) -> Picture:
    found = patch_filters(subject.model)
    together = float(found.explained.sum())
    words = (
        f"The first {len(found.filters)} principal components of the layer that reads the pixels ({found.layer}); they "
        f"hold {together:.1%} of its weights' variance."
    )
    return Picture(figure=filter_figure.patch_filters(found.pictures()), numbers=found.numbers(), words=words)


# ------------------------------------------------------------------ where it looks


def head_maps(subject: Subject) -> Picture:
    found = attention_maps(subject.model, subject.first(1))
    depth = len(found.maps)
    layers = np.unique(np.linspace(0, depth - 1, min(depth, MOST_ROWS)).round().astype(int)).tolist()
    image = rearrange(subject.images.pixels[0], "c h w -> h w c")
    whose = {"class": "the class token", "patches": "the patches, on average,"}[str(found.query)]
    return Picture(
        figure=map_figures.head_maps(image, found.maps[layers, 0], [layer + 1 for layer in layers]),
        numbers={**found.numbers(), "images": subject.images.names[:1]},
        words=f"Where {whose} look in {subject.images.names[0]}, by layer (down) and head (across); each map to its "
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
    pictures = rearrange(subject.images.pixels[:SHOWN], "b c h w -> b h w c")
    return Picture(
        figure=map_figures.attention_overlays(pictures, maps),
        numbers=numbers | {"conventions": conventions},
        words=words,
    )


# ------------------------------------------------------------------ representations


def receptive_fields(subject: Subject) -> Picture:
    found = effective_receptive_field(subject.model, subject.batches(IMAGES_OF_GRADIENTS, 2))
    numbers = found.numbers()
    distances = numbers["mean_distance"]
    return Picture(
        figure=field_figure.receptive_field(found.fields, distances, numbers["uniform_mean_distance"][0]),
        numbers=numbers,
        words=f"Effective receptive field of the patch in the centre, by block, over {found.num_images} images: the "
        f"mean distance of what it depends on goes from {distances[0]:.1f} to {distances[-1]:.1f} pixels.",
    )


def streams(subject: Subject) -> Picture:
    found = residual_streams(subject.model, subject.batches())
    parts = (found.patch_ratio, found.class_ratio, found.class_to_patches, found.between_patches)
    return Picture(
        figure=stream_figure.residual_streams(*parts),
        numbers=found.numbers(),
        words="How long the skip is beside what a branch adds, by block; and how alike tokens become.",
    )


def layers_alike(subject: Subject) -> Picture:
    count = len(subject.images.names)
    check(count >= 4, "--images", count, "the similarity of layers needs at least 4 images")
    other = subject.against or subject
    batches = zip(subject.batches(), other.batches(), strict=True)
    found = representation_similarity(subject.model, other.model, batches)
    return Picture(
        figure=alignment_figure.representation_similarity(found.similarity, subject.name, other.name),
        numbers={**found.numbers(), "models": [subject.name, other.name]},
        words=f"How alike the blocks' representations of {found.num_images} images are (CKA, unbiased).",
    )


def probes(subject: Subject) -> Picture:
    data, count = subject.images.data, len(subject.images.names)
    if data is None:
        raise ValueError("--data: it needs a data set, with images to train a probe on and others to judge it")
    train, test = (
        EvalLoader(part_of(split, most), subject.preprocessing, data)
        for split, most in ((open_training(data)[0], TRAINING_IMAGES * count), (open_test(data), count))
    )
    found = probe_layers(subject.model, train, test, device=subject.device)
    return Picture(
        figure=probe_figure.layer_probe(found.accuracy),
        numbers=found.numbers(),
        words=f"Accuracy of a linear probe after every block; {found.num_train} images to train on, {found.num_test} "
        "to test.",
    )


def heads_ablated(subject: Subject) -> Picture:
    labels = subject.images.labels
    if labels is None or not subject.knows_the_classes:
        raise ValueError("--data: it needs labelled images whose classes are those of the model's head")
    true = labels.to(subject.device)

    def judge() -> float:
        with torch.inference_mode(), evaluating(subject.model):
            answers = [answer_of(subject.model(batch)).argmax(dim=1) for batch in subject.batches()]
        return float((torch.cat(answers) == true).double().mean())

    found = ablate_heads(subject.model, judge)
    quantities = {
        "mean attention distance (pixels)": subject.profile.mean("distance"),
        "entropy (nats)": subject.profile.mean("entropy"),
    }
    correlations = {name: found.rank_correlation(values) for name, values in quantities.items()}
    told = ", ".join(f"{name} {value:+.2f}" for name, value in correlations.items())
    return Picture(
        figure=ablation_figure.head_ablation(found.lost, quantities),
        numbers={**found.numbers(**quantities), "rank_correlations": correlations},
        words=f"Accuracy lost without each head, of {found.whole:.2%} on {len(true)} images; rank correlation with "
        f"{told}.",
    )


DRAWINGS: dict[str, Draw] = {
    "attention_distance": attention_distance,
    "attention_distance_sorted": attention_distance_sorted,
    "position_similarity": positions,
    "patch_filters": filters,
    "attention_overlays": overlays,
    "attention_heads": head_maps,
    "attention_entropy": attention_entropy,
    "layer_similarity": layers_alike,
    "receptive_field": receptive_fields,
    "residual_streams": streams,
    "layer_probe": probes,
    "head_ablation": heads_ablated,
}
"""In the order of the page."""
OF_A_RUN = ("attention_distance", "position_similarity", "patch_filters", "attention_overlays")
"""What is drawn at the end of training."""
