"""The complete architecture of a ResNet: He et al. 2016, wider and grouped forms, ResNet-D, BiT's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vit.config.arguments import check_types
from vit.config.rules import check, check_positive
from vit.config.sizes import MOST_CHANNELS, MOST_PIXELS, check_most

Shortcut = Literal["projection", "padding", "average"]
ResNetStemKind = Literal["imagenet", "cifar", "deep"]

STAGES: dict[int, tuple[Literal["basic", "bottleneck"], tuple[int, ...]]] = {
    18: ("basic", (2, 2, 2, 2)),
    26: ("bottleneck", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
    **{6 * blocks + 2: ("basic", (blocks,) * 3) for blocks in (3, 5, 7, 9, 18)},
}
"""By depth, the number of layers with weights: the kind of block, and the number of blocks per stage. Those of three
stages are He et al.'s for CIFAR (section 4.2)."""


@dataclass(frozen=True, kw_only=True)
class ResNetConfig:
    """Complete architecture of a ResNet. Sizes are (height, width) in pixels."""

    depth: int = 50
    """Number of layers with weights, as 18, 50 or 101."""
    num_classes: int = 1000
    """Outputs of the head; 0: no head, and `forward` returns the pooled features."""
    image_size: tuple[int, int] = (224, 224)
    """Height and width of the images in pixels, or one number for both."""
    stem: ResNetStemKind = "imagenet"
    """The first layers. `imagenet`: a 7×7 convolution and pooling; `cifar`: a 3×3 convolution of stride 1 and no
    pooling, for images of 8 to 64 pixels; `deep`: three 3×3 convolutions in place of the 7×7 (ResNet-D).
    """
    width: int = 64
    """Channels of the first stage, and of the stem."""
    in_channels: int = 3
    """Colour channels of the images; training reads 3."""
    shortcut: Shortcut = "projection"
    """The way around a block that changes the shape. `projection`: a 1×1 convolution (He et al.'s B); `padding` with
    zero channels (their A); `average` over 2×2 pixels before the 1×1 convolution (ResNet-D).
    """
    groups: int = 1
    """Groups of the 3×3 convolution in a bottleneck (ResNeXt's cardinality)."""
    group_width: int | None = None
    """Channels of each group in the first stage; None: `width`. A wide ResNet has twice as many."""
    version: Literal[1, 2] = 1
    """The form of the blocks. 2: pre-activation bottlenecks with GroupNorm and standardized weights (BiT)."""

    def __post_init__(self) -> None:
        check_types("model", self)
        check(self.depth in STAGES, "model.depth", self.depth, f"choose from {', '.join(map(str, sorted(STAGES)))}")
        channels = ("width", "in_channels", "groups", "group_width")
        check_most("model", self, dict.fromkeys(channels, MOST_CHANNELS) | {"image_size": MOST_PIXELS})
        for name in channels:
            check_positive(f"model.{name}", getattr(self, name))
        check(min(self.image_size) > 0, "model.image_size", self.image_size, "it must be above 0")
        check(self.num_classes >= 0, "model.num_classes", self.num_classes, "it must be at least 0")
        rule = "the stem has half as many channels in its first convolutions: take an even number"
        check(self.stem != "deep" or self.width % 2 == 0, "model.width", self.width, rule)
        for name, plain in (("groups", 1), ("group_width", None)):
            value, depths = getattr(self, name), [depth for depth, (block, _) in STAGES.items() if block != "basic"]
            rule = f"only bottlenecks have it: model.depth {', '.join(map(str, depths))}"
            check(value == plain or self.depth in depths, f"model.{name}", value, rule)
        if self.version == 2:
            self._check_second_version()

    def _check_second_version(self) -> None:
        for name, plain in (("stem", "imagenet"), ("shortcut", "projection"), ("groups", 1), ("group_width", None)):
            value = getattr(self, name)
            check(value == plain, f"model.{name}", value, f"model.version 2 has only {plain!r}")
        bottlenecks = STAGES[self.depth][0] == "bottleneck"
        check(bottlenecks, "model.version", 2, f"it has bottlenecks, and model.depth {self.depth} has none")
        rule = "model.version 2 normalises 32 groups of channels: take a multiple of 32"
        check(self.width % 32 == 0, "model.width", self.width, rule)
