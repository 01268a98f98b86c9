"""Each model's answers to judge: on test images that all could be asked about, and on validation images.

The temperature is fitted on the latter, so they must be images that the model was not trained on: those that our run
held out. What a library's model was trained on is not known here (`facts` warns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vit.data.images import Split, fingerprint, open_training
from vit.data.splits import stratified
from vit.evaluation.comparison.answers import Answered, Question, answer, on_common_images
from vit.evaluation.comparison.contestants import Contestant
from vit.evaluation.comparison.judge import Side


def balanced_part(split: Split, num_images: int | None) -> Split:
    """About that many images, classes balanced, always the same ones; None: all."""
    if num_images is None or num_images >= len(split):
        return split
    chosen = stratified(split.labels, num_images / len(split), seed=0, stream="comparison")
    return Split(split.source, split.indices[chosen])


def sides_of(
    contestants: Sequence[Contestant],
    columns: Sequence[Sequence[int]],
    answered: Sequence[Answered],
    question: Question,
) -> list[Side]:
    """Test answers, and answers to at most as many validation images; where there are none, the reason."""
    tests = on_common_images(answered)
    try:
        validation, missing = open_training(question.data)[1], ""
    except ValueError as error:
        validation, missing = None, f"no validation images ({error})"
    sides = []
    for contestant, places, test in zip(contestants, columns, tests, strict=True):
        reason = _not_held_out(contestant, validation) if validation else missing
        if validation is None or reason:
            sides.append(Side(contestant.name, test, None, reason))
            continue
        part = balanced_part(validation, len(test.labels))
        asked = answer(contestant, places, replace(question, name="val", split=part, whole=validation))
        sides.append(Side(contestant.name, test, asked.predictions))
    return sides


def _not_held_out(contestant: Contestant, validation: Split) -> str:
    if contestant.validation in (None, fingerprint(validation)):
        return ""
    return "the run held out other images than these, so it may have been trained on them"
