"""Which of a target's images are shown, and what stands beside them: true and predicted class where they are known."""

from __future__ import annotations

from typing import NamedTuple

import torch

from vit.analysis.model_structure import logits_of
from vit.analysis.targets import AnalysisTarget
from vit.evaluation.examples import CONVENTION, across_classes, confidences, most_confident
from vit.evaluation.head_columns import readable_class_names

CONVENTIONS = {
    "mistakes": f"half of the images are mistakes, where there are as many, the others right; {CONVENTION}",
    "classes": "the first image of every class, then the second",
    "order": "the first images",
}


class Examples(NamedTuple):
    """Places among the images, a title for each, and how they were chosen."""

    places: list[int]
    titles: list[str]
    convention: str


def spread_over_classes(target: AnalysisTarget, count: int) -> list[int]:
    """The places of `count` images of as many classes as there are; of images without classes, the first ones."""
    labels, every = target.images.labels, range(len(target.images.names))
    return list(every[:count]) if labels is None or labels.dim() > 1 else across_classes(every, labels.tolist(), count)


@torch.no_grad()
def choose_examples(target: AnalysisTarget, count: int) -> Examples:
    """Choose `count` images across the classes; for a classifier of these classes, the most confident mistakes and
    successes.
    """
    images, names = target.images, readable_class_names(target.class_names)
    labels = None if images.labels is None or images.labels.dim() > 1 else images.labels.numpy()
    knows = target.has_head and bool(names) and not target.multilabel
    if labels is None or not (knows and target.has_matching_classes):
        places = spread_over_classes(target, count)
        own = readable_class_names(images.class_names)
        titles = [images.names[place] if labels is None else own[int(labels[place])] for place in places]
        return Examples(places, titles, CONVENTIONS["order" if labels is None else "classes"])
    logits = torch.cat([logits_of(target.model(batch)).float().cpu() for batch in target.batches()]).numpy()
    wrong = most_confident(logits, labels, right=False, count=count // 2)
    shown = {int(labels[place]) for place in wrong}
    successes = most_confident(logits, labels, right=True, count=len(labels))
    others = sorted(successes, key=lambda place: int(labels[place]) in shown)  # those of other classes first
    places = (wrong + others)[:count]
    if len(places) < count:  # there are few right ones
        more = most_confident(logits, labels, right=False, count=len(labels))
        places += [place for place in more if place not in places][: count - len(places)]
    predicted, probabilities = logits.argmax(axis=1), confidences(logits)
    titles = [
        f"true: {names[int(labels[place])]}\npredicted: {names[int(predicted[place])]}, {probabilities[place]:.0%}"
        for place in places
    ]
    return Examples(places, titles, CONVENTIONS["mistakes"])
