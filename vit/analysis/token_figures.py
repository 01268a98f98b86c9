"""Figures of the patches' features and of the tokens' norms with their numbers and captions."""

from __future__ import annotations

from vit.analysis import norms, patch_features
from vit.analysis.analysis_figure import AnalysisFigure
from vit.analysis.examples import spread_over_classes
from vit.analysis.targets import AnalysisTarget

NUM_IMAGES = patch_features.MOST_DRAWN
"""As many as are drawn."""


def patch_components(target: AnalysisTarget) -> AnalysisFigure:
    places = spread_over_classes(target, NUM_IMAGES)
    found = patch_features.patch_components(target.model, target.normalized(places))
    together = float(found.explained.sum())
    return AnalysisFigure(
        figure=found.plot(pixels=target.images.pixels[places]),
        numbers={**found.numbers(), "images": [target.images.names[place] for place in places]},
        caption=f"The first three principal components of the patches after the last block ({found.layer}), over these "
        f"{len(found.images)} images at once, as red, green and blue ({together:.1%} of the variance). Below, the "
        "patches on the foreground's side of the first component with components of their own (Oquab et al. 2023). In "
        "a healthy ViT the colours keep to objects and their parts, the same part in the same colour in every image.",
    )


def patch_similarity(target: AnalysisTarget) -> AnalysisFigure:
    places = spread_over_classes(target, NUM_IMAGES)
    found = patch_features.patch_similarity(target.model, target.normalized(places))
    return AnalysisFigure(
        figure=found.plot(pixels=target.images.pixels[places]),
        numbers={**found.numbers(), "images": [target.images.names[place] for place in places]},
        caption=f"Cosine of every patch after the last block ({found.layer}) with the framed one of its image; on "
        f"average {float(found.similarity.mean()):.2f}. In a healthy ViT the bright patches are those of the same "
        "object; where all are bright, the patches have become alike.",
    )


def token_norms(target: AnalysisTarget) -> AnalysisFigure:
    found = norms.token_norms(target.model, target.batches())
    median = found.quantile(0.5)
    block = found.outlier_block
    share, (border, chance) = float(found.outlier_share[block]), found.border_share()
    caption = (
        f"Norms of the tokens after each block over {found.num_images} images: the patches' median goes from "
        f"{float(median[0]):.3g} to {float(median[-1]):.3g}. Outlying patches, of more than {norms.OUTLIER:g} "
        "times the median norm of their image: "
    )
    caption += (
        f"{share:.2%} at most, after block {block + 1}; {border:.0%} of them lie at the edge (by chance {chance:.0%})."
        if share
        else "none."
    )
    caption += (
        " A healthy ViT has next to none; many, in the background, are artefacts that registers would take over "
        "(Darcet et al. 2024)."
    )
    return AnalysisFigure(figure=found.plot(), numbers=found.numbers(), caption=caption)
