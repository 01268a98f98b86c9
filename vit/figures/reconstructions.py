"""A masked autoencoder's reconstructions: each image as it is, its visible patches, and the prediction."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from vit.figures.style import GREY, check_shape, empty_figure, hide_frame, style

_SIDE = 1.25  # inches of an image's width


def plot_reconstructions(images: ArrayLike, seen: ArrayLike, predicted: ArrayLike) -> Figure:
    """Draw a column for each image: three arrays (b, H, W, 3) of uint8 below each other (He et al. 2022, figure 2).

    `seen` has the hidden patches in grey, `predicted` has predictions in their place.
    """
    rows = {"image": np.asarray(images), "seen": np.asarray(seen), "predicted": np.asarray(predicted)}
    count, height, width = rows["image"].shape[:3]
    for name, pictures in rows.items():
        check_shape(name, pictures, (count, height, width, 3), "images, rows, columns, channels")
    with style():
        figure = empty_figure(count * _SIDE + 0.4, 3 * (_SIDE * height / width + 0.05) + 0.1)
        grid = figure.subplots(3, count, squeeze=False)
        for row, (name, pictures) in zip(grid, rows.items(), strict=True):
            row[0].set_ylabel(name, fontsize=8, color=GREY)
            for axes, picture in zip(row, pictures, strict=True):
                axes.imshow(picture, interpolation="nearest" if height < 64 else "antialiased")
                axes.set(xticks=[], yticks=[])
                hide_frame(axes)
    return figure
