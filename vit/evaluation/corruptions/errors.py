"""Summaries of a model's robustness, from its error at every kind and severity of corruption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from vit.config import check

Errors = Mapping[str, Sequence[float]]
"""Kind → top-1 error (a fraction) at each severity."""
CONVENTIONS = {
    "mean_accuracy": "mean over kinds of the mean over severities of top-1 accuracy",
    "mce": "mean over kinds of (sum over severities of the error / the same of the baseline), Hendrycks and Dietterich "
    "2019; 1 = as the baseline, lower is better",
}


def mean_accuracy(errors: Errors) -> float:
    """Average the accuracy over kinds and severities."""
    return 1 - fmean(fmean(values) for values in errors.values())


def mean_corruption_error(errors: Errors, baseline: Errors) -> float:
    """Compute mCE relative to another model on the same images (section 4 of the paper); 1 for the baseline itself.

    ValueError if kinds or severities differ from the baseline's, or it makes no errors at some kind.
    """
    check(errors.keys() == baseline.keys(), "baseline", sorted(baseline), f"it needs the kinds {sorted(errors)}")
    ratios = []
    for kind, values in errors.items():
        theirs = baseline[kind]
        check(len(values) == len(theirs), "baseline", kind, f"it needs {len(values)} severities, not {len(theirs)}")
        check(sum(theirs) > 0, "baseline", kind, "it makes no errors, so there is nothing to divide by")
        ratios.append(sum(values) / sum(theirs))
    return fmean(ratios)
