"""Guidance of a ViT by a teacher's feature maps: which patches of an image are alike.

A ConvNet's maps tell early what belongs together in an image, which a ViT has to learn from the labels ("locality
guidance", Li et al. 2022). The likeness of every pair of patches is compared (Liu et al. 2019, "Structured knowledge
distillation", section 3.1), so nothing has to be learned between the widths of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from vit.config import Grid, check
from vit.models import VisionTransformer

MOST_MAPS = 4
"""Maps of a teacher that are used, at most; those of its last layers."""


class Guidance:
    """Compares a student's patches, after some of its blocks, with a teacher's maps of the same images.

    The blocks are watched from here on: in training each keeps its last output until `losses`.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module, image_size: tuple[int, int], source: str) -> None:
        """ValueError for a student that has no grid of patches, and for a teacher without maps as fine as it."""
        kind = type(student).__name__
        rule = f"only a VisionTransformer has patches to guide, this is a {kind}; use 'hard' or 'soft'"
        if not isinstance(student, VisionTransformer):
            raise ValueError(f"distill.kind: 'patches' is not valid: {rule}")
        rate = student.config.patch_dropout_rate
        check(rate == 0, "model.patch_dropout_rate", rate, "distill.kind 'patches' compares all patches; set it to 0")
        trained = any(parameter.requires_grad for parameter in student.blocks.parameters())
        check(
            trained, "distill.kind", "patches", "it teaches the blocks, which model.freeze_backbone keeps as they are"
        )
        self.student, self.teacher = student, teacher
        rule = f"the teacher {source!r} ({type(teacher).__name__}) gives no feature maps; use 'hard' or 'soft'"
        check(hasattr(teacher, "forward_intermediates"), "distill.kind", "patches", rule)
        images = torch.zeros(1, 3, *image_size, device=next(teacher.parameters()).device)
        rows, columns = student.embedding.grid_size(images)
        shapes = [each.shape[2:] for each in self._all_maps(images)]
        fine = [index for index, (height, width) in enumerate(shapes) if height >= rows and width >= columns]
        self.chosen = fine[-MOST_MAPS:]  # at this size: images that grow are guided by the same layers
        count = len(self.chosen)
        rule = f"no feature map of the teacher {source!r} is as fine as the student's {rows}×{columns} patches"
        check(count > 0, "distill.teacher", source, rule)
        self._outputs: dict[int, Tensor] = {}
        depth = len(student.blocks)
        self.blocks = [max(0, round((number + 1) * depth / count) - 1) for number in range(count)]
        for index in set(self.blocks):
            student.blocks[index].register_forward_hook(self._keep(index))

    def _keep(self, index: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def keep(block: nn.Module, _: Any, output: Tensor) -> None:
            if block.training:
                self._outputs[index] = output  # one that a backward pass recomputes is replaced before it is used

        return keep

    @torch.no_grad()
    def _all_maps(self, images: Tensor) -> list[Tensor]:
        maps: list[Tensor] = self.teacher.forward_intermediates(images, intermediates_only=True)  # type: ignore[operator]
        return maps

    def maps(self, images: Tensor) -> list[Tensor]:
        """The teacher's last maps `b c h w` of those that are as fine as the student's grid, at the full size."""
        maps = self._all_maps(images)
        return [maps[index] for index in self.chosen]

    def losses(self, images: Tensor) -> Tensor:
        """(b,) losses of the student's last pass, which was over these images."""
        grid = self.student.embedding.grid_size(images)
        first = self.student.num_prefix_tokens
        outputs, self._outputs = self._outputs, {}
        pairs = zip(self.blocks, self.maps(images), strict=True)
        losses = [similarity_losses(outputs[index][:, first:], each, grid) for index, each in pairs]
        return torch.stack(losses).mean(dim=0)


def similarity_losses(patches: Tensor, feature_map: Tensor, grid: Grid) -> Tensor:
    """Mean squared differences (b,) of cosine similarity over all pairs of patches: `b n c` against a map `b k h w`.

    The map is averaged over each patch of the grid (gh, gw).
    """
    pooled = F.adaptive_avg_pool2d(feature_map.float(), grid)
    theirs = F.normalize(rearrange(pooled, "b k gh gw -> b (gh gw) k"), dim=2)
    ours = F.normalize(patches.float(), dim=2)
    return (ours @ ours.mT - theirs @ theirs.mT).square().mean(dim=(1, 2))  # of b n n
