"""Arrays and names that do not fit together are one line that says what would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure

from vit.figures.accuracy_over_time import plot_accuracy_over_time
from vit.figures.agreement import plot_agreement
from vit.figures.alignment import plot_alignment
from vit.figures.attention_map import plot_attention_map
from vit.figures.attention_maps import plot_head_maps
from vit.figures.bleu_by_length import plot_bleu_by_length
from vit.figures.confusion_matrix import plot_confusion_matrix
from vit.figures.data_size import plot_data_size
from vit.figures.heads_by_depth import plot_heads_by_depth, plot_sorted_heads
from vit.figures.layer_probe import plot_layer_probe
from vit.figures.patch_filters import plot_patch_filters
from vit.figures.position_similarity import plot_position_similarity
from vit.figures.score_scaling import plot_score_scaling
from vit.figures.text_heads import plot_text_heads

ONES = np.ones((2, 3))
MANY = {str(number): [0.5] for number in range(9)}


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: plot_accuracy_over_time({}), "curves: 0 is not valid: between 1 and 6 recipes"),
        (lambda: plot_accuracy_over_time({"a": [[(1, 1)]]}, close_up=5), "close_up: 5 is not valid"),
        (
            lambda: plot_accuracy_over_time({"a": [[(1, 1)], [(1, 1), (2, 1)]]}),
            r"curves: a: \[1, 2\] is not valid: its runs must be validated equally often",
        ),
        (lambda: plot_agreement({"kappa": ONES}, ["a", "b"]), r"matrices: \(2, 3\) is not valid: .* \(2, 2\)"),
        (lambda: plot_alignment(ONES, ["a", "b"], ["c", "d"]), r"weights: \(2, 3\) .* 2 target and 2 source tokens"),
        (lambda: plot_attention_map(ONES, ["a"], ["b"]), r"weights: \(1, 2, 3\) .* \(1, 1, 1\): titles, queries, keys"),
        (lambda: plot_head_maps(np.ones((4, 4, 3)), np.ones((2, 1, 2, 2)), [1]), "maps: .* there are 1 blocks"),
        (lambda: plot_bleu_by_length({}), "rows: 0 is not valid: between 1 and 6 models"),
        (lambda: plot_confusion_matrix(ONES.astype(int), ["a", "b"]), r"counts: \(2, 3\) .* for each class"),
        (lambda: plot_data_size({key: [] for key in MANY}, {}), "curves: 9 is not valid: at most 6 recipes"),
        (lambda: plot_heads_by_depth([], ["a"]), "panels: 0 is not valid: there are 1 titles"),
        (lambda: plot_sorted_heads([], ["a"]), "panels: 0 is not valid: there are 1 titles"),
        (lambda: plot_layer_probe(MANY), "accuracy: 9 is not valid: at most 4 lines"),
        (lambda: plot_patch_filters(ONES), r"filters: \(2, 3\) is not valid: they must be k ph pw 3"),
        (
            lambda: plot_position_similarity(np.ones((2, 2, 4, 4)), [0], [0]),
            r"tiles: \(2, 2, 4, 4\) .* 1 × 1 × gh",
        ),
        (lambda: plot_position_similarity(ONES, [0, 1], [0, 1, 2]), r"tiles: \(2, 3\) is not valid"),
        (lambda: plot_score_scaling([4], MANY, {}, {}, 0.1), "variances: 9 is not valid: at most 3 scores"),
        (lambda: plot_text_heads(ONES, ["a"], ["b"]), r"maps: \(2, 3\) is not valid: .* 1 queries × 1 keys"),
    ],
)
def test_one_line_says_what_would_fit(draw: Callable[[], Figure], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        draw()
    assert "\n" not in str(caught.value)
