"""A linear probe: multinomial logistic regression with L2 on standardised features.

The objective and the stopping rule are those of scikit-learn's `LogisticRegression` (L-BFGS), whose strength `C` this
is. The loss is computed by torch in float32, on all cores, L-BFGS is preconditioned, and every strength starts from the
optimum of a stronger regularisation, so a hundred thousand features and hundreds of classes take minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax

STRENGTHS = tuple(float(10.0**power) for power in range(-4, 3))
HELD_OUT = 0.2
CONVENTION = "logistic regression on standardised features; strength chosen on a held-out fifth of training"
_ROWS = 8192
"""Features whose logits are computed at once."""
_TOLERANCE, _MAX_STEPS = 1e-4, 2000

Weights = NDArray[np.float64]
"""(k, c + 1): for every class its weights, then its bias."""
Gram = NDArray[np.float64]
"""(c, c)."""


class LinearProbe(NamedTuple):
    predicted: NDArray[np.int64]
    """(m,) class of each of the test features."""
    strength: float
    """scikit-learn's `C`: the larger, the less regularised."""
    held_out: dict[float, float]
    """Accuracy of each strength on the held-out part of the training features."""


def probe_fault(labels: Tensor, held_out: float = HELD_OUT) -> str | None:
    """Why no linear probe can be fitted on images of these labels (n,); None: it can."""
    counts = labels.unique(return_counts=True)[1]
    num_held_out = math.ceil(held_out * len(labels))
    if int(counts.min()) >= 2 and min(num_held_out, len(labels) - num_held_out) >= len(counts):
        return None
    return (
        "a linear probe needs at least two images of every class, and as many as there are classes in the "
        f"{held_out:.0%} that choose its strength; there are {len(labels)} images of {len(counts)} classes"
    )


def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    *,
    strengths: Sequence[float] = STRENGTHS,
    held_out: float = HELD_OUT,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> LinearProbe:
    """Fit a linear probe to features (n, c) and labels (n,), and predict the classes of the test features (m, c).

    The strength is the best one on a held-out part of the training features, class-balanced and fixed by `seed`; of
    equally good ones the most regularised. The final fit is on all training features. `progress` is told every fit
    before it starts. ValueError for too few images of a class (`probe_fault`).
    """
    from sklearn.model_selection import train_test_split

    fault = probe_fault(train_labels, held_out)
    if fault is not None:
        raise ValueError(f"--transfer: {fault}")
    say = progress or (lambda _: None)
    places = np.arange(len(train_labels))
    kept, held = train_test_split(places, test_size=held_out, random_state=seed, stratify=train_labels.numpy())
    fit_x, held_x = standardise(train_features[kept], train_features[held])
    weights: dict[float, Weights] = {}
    scores: dict[float, float] = {}
    start, gram = None, gram_matrix(fit_x)
    for strength in sorted(strengths):
        say(f"strength {strength:g}")
        start = weights[strength] = fit_logistic(fit_x, train_labels[kept], strength, start=start, gram=gram)
        scores[strength] = float((predict_classes(start, held_x) == train_labels[held].numpy()).mean())
    best = max(scores, key=lambda strength: scores[strength])
    del fit_x, held_x
    say("all training features")
    train_x, test_x = standardise(train_features, test_features)
    final = fit_logistic(train_x, train_labels, best, start=weights[best])
    return LinearProbe(predicted=predict_classes(final, test_x), strength=best, held_out=scores)


def standardise(features: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Standardise both, (n, c) and (m, c), with the mean and standard deviation of the first; float32.

    A feature that is constant there becomes 0.
    """
    mean = features.mean(dim=0, dtype=torch.float64).float()
    centred = features - mean
    std = centred.square().mean(dim=0, dtype=torch.float64).sqrt().float()
    std = torch.where(std > 0, std, torch.ones_like(std))
    return centred.div_(std), (others - mean).div_(std)


def fit_logistic(
    x: Tensor,
    labels: Tensor,
    strength: float,
    *,
    start: Weights | None = None,
    gram: Gram | None = None,
    tolerance: float = _TOLERANCE,
) -> Weights:
    """Minimise the mean cross-entropy of (n, c) plus |weights|² / (2 · strength · n), biases free of it, by L-BFGS.

    It stops where no entry of the gradient exceeds `tolerance`. `start`: another solution to begin at, else 0. `gram`:
    `gram_matrix(x)`, if it has been computed. Products are in the type of `x`.
    """
    from scipy.linalg import solve_triangular
    from scipy.optimize import minimize

    num_classes, width = int(labels.max()) + 1, x.shape[1] + 1
    penalty = 1 / (strength * len(x))
    # L-BFGS runs in coordinates u in which the Hessian of equally probable classes is the identity: features are
    # correlated, and in w it would take five times as many steps. w = u @ to_weights, and L Lᵀ is that Hessian.
    hessian = np.zeros((width, width))
    hessian[:-1, :-1] = (gram_matrix(x) if gram is None else gram) / num_classes + penalty * np.eye(width - 1)
    hessian[-1, -1] = 1 / num_classes
    lower = np.linalg.cholesky(hessian)
    to_weights = solve_triangular(lower, np.eye(width), lower=True)
    steepest = math.inf  # the largest entry of the last gradient in w

    def objective(flat: Weights) -> tuple[float, Weights]:
        nonlocal steepest
        weights = flat.reshape(num_classes, width) @ to_weights
        loss, gradient = _cross_entropy(weights, x, labels)
        gradient[:, :-1] += penalty * weights[:, :-1]
        steepest = float(np.abs(gradient).max())
        return loss + 0.5 * penalty * float((weights[:, :-1] ** 2).sum()), (gradient @ to_weights.T).ravel()

    def stop_where_flat(_: Weights) -> None:
        if steepest <= tolerance:
            raise StopIteration

    first = np.zeros((num_classes, width)) if start is None else start @ lower
    options = {"maxiter": _MAX_STEPS, "gtol": 0.0, "ftol": 64 * np.finfo(np.float64).eps, "maxls": 50}
    found = minimize(objective, first.ravel(), jac=True, method="L-BFGS-B", callback=stop_where_flat, options=options)
    weights: Weights = found.x.reshape(num_classes, width) @ to_weights
    return weights


def gram_matrix(x: Tensor) -> Gram:
    """xᵀx / n (c, c) of (n, c), summed in float64, so that it has no negative eigenvalue beyond rounding."""
    total = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for rows in x.split(_ROWS):
        total.addmm_(rows.double().T, rows.double())
    return total.div_(len(x)).numpy()


def _cross_entropy(weights: Weights, x: Tensor, labels: Tensor) -> tuple[float, Weights]:
    """The mean cross-entropy and its gradient (k, c + 1); sums over parts of the rows are in float64."""
    typed = torch.from_numpy(weights).to(x.dtype)
    matrix, bias = typed[:, :-1].T, typed[:, -1]
    loss, gradient = 0.0, torch.zeros(weights.shape, dtype=torch.float64)
    for rows, classes in zip(x.split(_ROWS), labels.split(_ROWS), strict=True):
        scores = log_softmax(torch.addmm(bias, rows, matrix), dim=1)  # n k
        loss -= float(scores.gather(1, classes[:, None]).sum(dtype=torch.float64))
        errors = scores.exp_().scatter_add_(1, classes[:, None], -scores.new_ones(len(classes), 1))
        gradient[:, :-1] += errors.T @ rows
        gradient[:, -1] += errors.sum(dim=0, dtype=torch.float64)
    return loss / len(x), gradient.div_(len(x)).numpy()


def predict_classes(weights: Weights, x: Tensor) -> NDArray[np.int64]:
    """The class of each row of (m, c): the largest logit, of equal ones the lower class."""
    typed = torch.from_numpy(weights).to(x.dtype)
    return torch.addmm(typed[:, -1], x, typed[:, :-1].T).numpy().argmax(axis=1)
