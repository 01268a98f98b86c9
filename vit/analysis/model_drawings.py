"""Figures of a model's weights and representations: which numbers, by which function, in which words.

Draws nothing itself.
"""

from __future__ import annotations

import torch

from vit.analysis.filters import patch_filters
from vit.analysis.head_ablation import ablate_heads
from vit.analysis.layer_probe import probe_layers
from vit.analysis.parts import answer_of, patch_grid
from vit.analysis.picture import Picture
from vit.analysis.position_similarity import position_similarity
from vit.analysis.receptive_field import effective_receptive_field
from vit.analysis.representation_similarity import representation_similarity
from vit.analysis.residual_streams import residual_streams
from vit.analysis.subjects import Subject, part_of
from vit.data.images import open_test, open_training
from vit.data.loading import EvalLoader
from vit.evaluation.evaluate import evaluating
from vit.figures import head_ablation as ablation_figure
from vit.figures import layer_probe as probe_figure
from vit.figures import patch_filters as filter_figure
from vit.figures import position_similarity as position_figure
from vit.figures import receptive_field as field_figure
from vit.figures import representation_similarity as alignment_figure
from vit.figures import residual_streams as stream_figure

IMAGES_OF_GRADIENTS = 8
"""Images of the receptive field, which needs a backward pass for every block."""
TRAINING_IMAGES = 4
"""For one test image of a probe."""


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
    if count < 4:
        raise ValueError(f"the similarity of layers needs at least 4 images, there are {count}; see --data")
    other = subject.against or subject
    batches = zip(subject.mixed_batches(), other.mixed_batches(), strict=True)
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
