"""Figures of a model's weights and representations with their numbers and captions."""

from __future__ import annotations

import math

import torch

from vit.analysis.analysis_figure import AnalysisFigure
from vit.analysis.filters import patch_filters
from vit.analysis.head_ablation import ablate_heads
from vit.analysis.layer_probe import probe_layers
from vit.analysis.model_structure import logits_of, patch_grid
from vit.analysis.positions import position_vectors, similarity_of
from vit.analysis.receptive_field import effective_receptive_field
from vit.analysis.representations import representation_similarity
from vit.analysis.streams import residual_streams
from vit.analysis.targets import AnalysisTarget
from vit.analysis.unsupported import Unsupported
from vit.data.images import open_test
from vit.data.loading import EvalLoader
from vit.data.splits import balanced_subset
from vit.evaluation.evaluate import evaluating
from vit.evaluation.probe import probe_fault

IMAGES_OF_GRADIENTS = 8
"""Images of the receptive field, few because it needs a backward pass for every block."""
_ORDINALS = {2: "nd", 3: "rd"}


def position_similarity(target: AnalysisTarget) -> AnalysisFigure:
    """The first kind of positions that the model has is drawn; the numbers hold all kinds."""
    height, width = target.preprocessing.image_size
    grid = patch_grid(target.model, (height, width))
    found, larger = (
        {kind: similarity_of(table) for kind, table in position_vectors(target.model, each).items()}
        for each in (grid, (grid[0] * 3 // 2, grid[1] * 3 // 2))
    )
    kind, similarity = next(iter(found.items()))
    numbers, resized = ({name: each.numbers() for name, each in every.items()} for every in (found, larger))
    caption = (
        f"Cosine similarity of the position of each patch with all others ({kind}): with the distance on the grid it "
        f"correlates by {similarity.distance_correlation:+.3f}; rows explain {similarity.row_share:.1%} of it, columns "
        f"{similarity.column_share:.1%} (by chance {numbers[kind]['chance_row_share']:.1%} and "
        f"{numbers[kind]['chance_column_share']:.1%}). Resized to {larger[kind].grid[0]}×{larger[kind].grid[1]}: "
        f"{larger[kind].distance_correlation:+.3f}, {larger[kind].row_share:.1%}, {larger[kind].column_share:.1%}."
    )
    if (step := similarity.step()) > 1:
        caption += f" Drawn are the tiles of every {step}{_ORDINALS.get(step, 'th')} row and column of patches."
    caption += " In a healthy ViT a tile is brightest at its own patch and fades along its row and column."
    conventions = numbers[kind]["conventions"]
    return AnalysisFigure(
        figure=similarity.plot(),
        numbers={"positions": numbers, "resized": resized, "conventions": conventions},
        caption=caption,
    )


def filters(target: AnalysisTarget) -> AnalysisFigure:
    found = patch_filters(target.model)
    together = float(found.explained.sum())
    caption = (
        f"The first {len(found.filters)} principal components of the layer that reads the pixels ({found.layer}); they "
        f"hold {together:.1%} of its weights' variance, each on a scale of its own. "
        "In a healthy ViT they have structure, as colours, edges and "
        "gratings (ViT, figure 7); where every pixel is on its own, the layer has learned little."
    )
    return AnalysisFigure(figure=found.plot(), numbers=found.numbers(), caption=caption)


def receptive_field(target: AnalysisTarget) -> AnalysisFigure:
    found = effective_receptive_field(target.model, target.batches(IMAGES_OF_GRADIENTS, 2))
    numbers = found.numbers()
    distances = numbers["mean_distance"]
    return AnalysisFigure(
        figure=found.plot(),
        numbers=numbers,
        caption=f"Effective receptive field of the patch in the centre, by block, over {found.num_images} images: the "
        f"mean distance of what it depends on goes from {distances[0]:.1f} to {distances[-1]:.1f} pixels. A healthy "
        "ViT sees the whole image after a few blocks, and its own patch most (Raghu et al. 2021, figure 6).",
    )


def streams(target: AnalysisTarget) -> AnalysisFigure:
    found = residual_streams(target.model, target.batches())
    return AnalysisFigure(
        figure=found.plot(),
        numbers=found.numbers(),
        caption="How long the skip is beside what a branch adds, by block; and how alike tokens become. In a healthy "
        "ViT no branch is idle (a ratio far above all others), and patches stay apart: a mean cosine near 1 means that "
        "they have become alike.",
    )


def layer_similarity(target: AnalysisTarget) -> AnalysisFigure:
    count = len(target.images.names)
    if count < 4:
        raise Unsupported(f"the similarity of blocks needs at least 4 images, there are {count}; see --data")
    other = target.against or target
    batches = zip(target.mixed_batches(), other.mixed_batches(), strict=True)
    found = representation_similarity(target.model, other.model, batches)
    return AnalysisFigure(
        figure=found.plot(target.name, other.name),
        numbers={**found.numbers(), "models": [target.name, other.name]},
        caption=f"How alike the blocks' representations of {found.num_images} images are (CKA, unbiased). In a healthy "
        "ViT neighbouring blocks are most alike and there are no stages, into which those of a ResNet fall (Raghu et "
        "al. 2021, figure 1).",
    )


def layer_probe(target: AnalysisTarget) -> AnalysisFigure:
    training, data = target.probe_images, target.images.data
    assert data is not None, "they are of it"
    fault = probe_fault(training.labels)
    if fault is not None:
        raise Unsupported(f"--images: {fault}")
    test = balanced_subset(open_test(data), len(target.images.names), stream="analysis")
    loaders = (EvalLoader(split, target.preprocessing, data) for split in (training, test))
    found = probe_layers(target.model, *loaders, device=target.device)
    return AnalysisFigure(
        figure=found.plot(),
        numbers=found.numbers(),
        caption=f"Accuracy of a linear probe after every block; {found.num_train} images to train on, {found.num_test} "
        "to test. Bars: 95 % intervals (Wilson). In a healthy ViT it rises with depth (Raghu et al. 2021, figure 13); "
        "in one that was trained without labels it may fall again in the last blocks (Chen et al. 2020).",
    )


def head_ablation(target: AnalysisTarget) -> AnalysisFigure:
    labels = target.images.labels
    if not target.has_head:
        raise Unsupported("model: it has no head, and so no accuracy to lose")
    if labels is None or not target.has_matching_classes:
        raise Unsupported("--data: it needs labelled images whose classes are those of the model's head")
    if target.multilabel:
        raise Unsupported("model: it gives an image any number of labels; the accuracy is of models that give one")
    true = labels.to(target.device)

    def hits() -> torch.Tensor:
        with torch.inference_mode(), evaluating(target.model):
            predicted = [logits_of(target.model(batch)).argmax(dim=1) for batch in target.batches()]
        return torch.cat(predicted) == true

    found = ablate_heads(target.model, hits, layers=target.profile.layers)
    quantities = {
        "mean attention distance (pixels)": target.profile.mean("distance"),
        "entropy (nats)": target.profile.mean("entropy"),
    }
    numbers = found.numbers(quantities)
    told = ", ".join(
        f"{name} {'undefined' if math.isnan(value) else f'{value:+.2f}'}"
        for name, value in numbers["rank_correlation"].items()
    )
    return AnalysisFigure(
        figure=found.plot(quantities),
        numbers=numbers,
        caption=f"Accuracy lost without each head, of {found.whole:.2%} on {len(true)} images; rank correlation with "
        f"{told}. Bars: 95 % intervals of each head alone, paired over images; a black dot marks a head whose interval "
        "leaves out 0, as about one in twenty does by chance. In a healthy ViT most heads cost little (Michel et al. "
        "2019): what one does, others do too.",
    )
