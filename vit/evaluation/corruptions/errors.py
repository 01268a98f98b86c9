"""One number for a model's robustness, from its error at every kind and strength. Numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from vit.config import check

Errors = Mapping[str, Sequence[float]]
"""Kind → top-1 error (a fraction) at each strength."""
CONVENTIONS = {
    "mean_accuracy": "mean over kinds of the mean over strengths of top-1 accuracy",
    "mce": "mean over kinds of (sum over strengths of the error / the same of the baseline), Hendrycks and Dietterich "
    "2019; 1 = as the baseline, lower is better",
    "relative_mce": "the same with the errors on clean images taken off both",
}


def mean_accuracy(errors: Errors) -> float:
    """Over kinds and strengths."""
    return 1 - fmean(fmean(values) for values in errors.values())


def mean_corruption_error(errors: Errors, baseline: Errors) -> float:
    """mCE relative to another model on the same images (section 4 of the paper). 1 for the baseline itself.

    ValueError: other kinds or strengths than the baseline's, or a baseline without error at some kind.
    """
    return relative_mean_corruption_error(errors, 0.0, baseline, 0.0)


def relative_mean_corruption_error(errors: Errors, clean: float, baseline: Errors, baseline_clean: float) -> float:
    """The same for what corruption adds to the error on clean images: `clean` and `baseline_clean`."""
    check(errors.keys() == baseline.keys(), "baseline", sorted(baseline), f"it needs the kinds {sorted(errors)}")
    ratios = []
    for kind, values in errors.items():
        theirs = baseline[kind]
        check(len(values) == len(theirs), "baseline", kind, f"it needs {len(values)} strengths, not {len(theirs)}")
        added = sum(theirs) - baseline_clean * len(theirs)
        check(added > 0, "baseline", kind, "corruption adds nothing to its error, so there is nothing to divide by")
        ratios.append((sum(values) - clean * len(values)) / added)
    return fmean(ratios)
