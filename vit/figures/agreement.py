"""Agreement of models' predictions: a matrix of models by models with the numbers in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from vit.figures.style import PALE, as_floats, check_shape, empty_figure, hide_frame, style, write_in_cell


def plot_agreement(matrices: Mapping[str, np.ndarray], names: Sequence[str]) -> Figure:
    """Draw a panel for each matrix (k, k) of values up to 1, titled by its key; NaN is grey and empty."""
    side = max(1.9, 0.62 * len(names) + 0.7)
    longest = max(map(len, names))
    with style():
        figure = empty_figure(side * len(matrices) + 0.075 * longest + 0.3, side + 0.06 * longest + 0.5)
        panels = figure.subplots(1, len(matrices), sharey=True, squeeze=False)[0]
        for axes, (title, values) in zip(panels, matrices.items(), strict=True):
            check_shape("matrices", values, (len(names),) * 2, "a row and a column for each of `names`")
            axes.set_facecolor(PALE)
            axes.imshow(as_floats(values), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            hide_frame(axes)
            for cell, value in np.ndenumerate(values):
                if np.isfinite(value):
                    text = f"{value:.2f}".replace("-", "−")
                    write_in_cell(axes, cell, text, on_dark=value > 0.6, fontsize=8)
            axes.set_title(title)
            turned = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if longest > 2 else {}
            axes.set_xticks(range(len(names)), names, **turned)
            axes.set_yticks(range(len(names)), names)
    return figure
