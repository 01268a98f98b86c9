"""Residual streams: the length of the skip against the branch, and how similar tokens become by depth.

Raghu et al. 2021, sections 4 and 6. A branch's output is the change of the stream, so the inputs and outputs of
blocks and the inputs of their second branches are enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vit.analysis.model_structure import forward_hooks, image_batches, residual_blocks, second_branches
from vit.analysis.tokens import block_tokens, token_layout
from vit.config import check_arguments
from vit.evaluation.evaluate import evaluating

if TYPE_CHECKING:
    from vit.figures.style import Figure

BRANCHES = ("attention", "feedforward")
CONVENTIONS = {
    "skip_to_branch": "mean length of what passes by a branch over mean length of what the branch adds (after "
    "LayerScale), over images and, for patches, over these; by block: attention, feed-forward",
    "class_to_patches": "mean cosine of the class token and the patches, after each block",
    "between_patches": "mean cosine of two different patches of an image, after each block",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class ResidualStreams:
    """`patch_ratio`, `class_ratio`: l 2 (attention, feed-forward); cosines: l. Without a class token NaN."""

    patch_ratio: Tensor
    class_ratio: Tensor
    class_to_patches: Tensor
    between_patches: Tensor
    layers: list[str]
    num_images: int

    def plot(self) -> Figure:
        """Draw the ratios of skip to branch and the cosines, by block."""
        from vit.figures import plot_residual_streams

        return plot_residual_streams(self.patch_ratio, self.class_ratio, self.class_to_patches, self.between_patches)

    def numbers(self) -> dict[str, Any]:
        ratios = {"patches": self.patch_ratio, "class": self.class_ratio}
        return {
            "layers": self.layers,
            "skip_to_branch": {
                token: {branch: ratio[:, place].tolist() for place, branch in enumerate(BRANCHES)}
                for token, ratio in ratios.items()
            },
            "class_to_patches": self.class_to_patches.tolist(),
            "between_patches": self.between_patches.tolist(),
            "num_images": self.num_images,
            "conventions": CONVENTIONS,
        }


@check_arguments
def residual_streams(model: nn.Module, batches: Tensor | Iterable[Tensor]) -> ResidualStreams:
    """Ratios and cosines of every block over normalised images `b 3 H W`.

    ValueError without images, Unsupported for blocks that do not add attention and after it feed-forward.
    """
    layers = list(second_branches(model))
    lengths = torch.zeros(len(layers), 2, 2, 2, dtype=torch.float64)  # layer, branch, (class, patch), (skip, branch)
    cosines = torch.zeros(len(layers), 2, dtype=torch.float64)
    num_images, class_or_nan = 0, float("nan")
    for images in image_batches(model, batches):
        for place, (before, between, after) in enumerate(_streams(model, images)):
            layout = token_layout(model, (images.shape[2], images.shape[3]), after.shape[1])
            num_patches, class_or_nan = layout.num_patches, 1.0 if layout.has_class_token else float("nan")
            for branch, (skip, result) in enumerate(((before, between), (between, after))):
                lengths[place, branch] += _lengths(skip, result - skip, num_patches)
            cosines[place] += _cosines(after, num_patches)
        num_images += len(images)
    ratios = lengths[..., 0] / lengths[..., 1]  # layer, branch, (class, patch)
    return ResidualStreams(
        patch_ratio=ratios[..., 1],
        class_ratio=ratios[..., 0] * class_or_nan,
        class_to_patches=cosines[:, 0] / num_images * class_or_nan,
        between_patches=cosines[:, 1] / num_images,
        layers=layers,
        num_images=num_images,
    )


@torch.no_grad()
def _streams(model: nn.Module, images: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For every block: the stream before it, between its branches and after it, `b n c` each."""
    blocks, branches = residual_blocks(model), second_branches(model)
    before: dict[str, Tensor] = {}
    between: dict[str, Tensor] = {}
    after: dict[str, Tensor] = {}
    with (
        evaluating(model),
        forward_hooks(blocks, before.__setitem__, inputs=True),
        forward_hooks(branches, between.__setitem__, inputs=True),
        forward_hooks(blocks, after.__setitem__),
    ):
        model(images)
    first, second, third = (
        [block_tokens(model, stream[name]) for name in blocks] for stream in (before, between, after)
    )
    return list(zip(first, second, third, strict=True))


def _lengths(skip: Tensor, branch: Tensor, num_patches: int) -> Tensor:
    """Sums over images of the lengths of the first token and of the patches' mean, (class, patch) × (skip, branch)."""
    first = skip.shape[1] - num_patches
    norms = torch.stack([stream.double().norm(dim=-1) for stream in (skip, branch)]).cpu()  # 2 b n
    return torch.stack((norms[:, :, 0].sum(dim=1), norms[:, :, first:].mean(dim=2).sum(dim=1)))


def _cosines(tokens: Tensor, num_patches: int) -> Tensor:
    """Cosines summed over images: of the first token with the patches, and between different patches."""
    units = nn.functional.normalize(tokens.double(), dim=-1)
    patches = units[:, units.shape[1] - num_patches :]
    total = patches.sum(dim=1)  # b c
    of_class = (units[:, 0] * total).sum(dim=-1) / num_patches
    pairs = max(num_patches * (num_patches - 1), 1)
    between = (total.square().sum(dim=-1) - patches.square().sum(dim=(1, 2))) / pairs
    return torch.stack((of_class.sum(), between.sum())).cpu()
