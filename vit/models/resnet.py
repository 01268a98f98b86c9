"""ResNet-18/34/50 (He et al. 2016), the baseline, with the same interface as the Vision Transformer.

The blocks and all parameter names are torchvision's, so its weights load. The `cifar` stem is a 3×3 convolution without
pooling.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Never

import torch
from einops import reduce
from torch import Tensor, nn

from vit.config import ResNetConfig
from vit.layers.patches import check_image_dtype, check_image_shape
from vit.models.backbone import OutputFormat, check_output_format, select_blocks
from vit.models.model import Model
from vit.randomness import SampleRandom

if TYPE_CHECKING:
    from torchvision.models.resnet import BasicBlock, Bottleneck

STAGES: dict[int, tuple[str, tuple[int, ...]]] = {
    18: ("BasicBlock", (2, 2, 2, 2)),
    34: ("BasicBlock", (3, 4, 6, 3)),
    50: ("Bottleneck", (3, 4, 6, 3)),
}
"""By depth: torchvision's block, and the number of blocks per stage."""


class ResNet(Model):
    """`b 3 H W -> b k` (or `config.in_channels` channels), any image size."""

    fc: nn.Linear | nn.Identity

    def __init__(self, config: ResNetConfig) -> None:
        from torchvision.models import resnet  # here, because it imports torch's compiler, which is slow

        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        name, depths = STAGES[config.depth]
        block = getattr(resnet, name)
        small = config.stem == "cifar"
        kernel, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(config.in_channels, config.width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(config.width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        widths = [config.width * 2**index for index in range(len(depths))]
        incoming = [config.width, *(width * block.expansion for width in widths[:-1])]
        for index, (source, width, depth) in enumerate(zip(incoming, widths, depths, strict=True)):
            self.add_module(f"layer{index + 1}", _stage(block, source, width, depth, 1 if index == 0 else 2))
        self.num_features = widths[-1] * block.expansion
        self.fc = self._new_head()
        initialize(self)

    def _new_head(self) -> nn.Linear | nn.Identity:
        classes = self.config.num_classes
        return nn.Linear(self.num_features, classes) if classes else nn.Identity()

    def forward(self, images: Tensor, *, rng: SampleRandom | None = None, separate_heads: bool = False) -> Tensor:
        """Logits `b k`, or features `b c` without classes. `rng` is not used: nothing here is random."""
        if separate_heads:
            raise ValueError("separate_heads: True is not valid: a ResNet has no model.distillation_token")
        return self.forward_head(self.forward_features(images, rng))

    def forward_features(self, images: Tensor, rng: SampleRandom | None = None) -> Tensor:  # noqa: ARG002
        """The last feature map, `b c gh gw`. ValueError for images of a wrong shape or type."""
        for x in self._maps(images):  # noqa: B007  (only one map is kept in memory)
            pass
        return x

    def forward_head(self, features: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits from `forward_features`' map; with `pre_logits`, the head's input, `b c`."""
        return self.pool(features) if pre_logits else self.fc(self.pool(features))

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,  # noqa: ARG002  (accepted as in timm; every map is normalised already)
        output_fmt: OutputFormat = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """`forward_features` and the selected of five maps `b c h w`: the stem's, before pooling, and the stages'.

        `indices`: a number of last maps, or a list of maps, negative ones from the end; None: all. ValueError for an
        index out of range, and for `NLC`.
        """
        check_output_format(output_fmt, ("NCHW",))
        chosen = select_blocks(self.num_layers, indices)
        maps = list(self._maps(images))
        selected = [each for index, each in enumerate(maps) if index in chosen]
        return selected if intermediates_only else (maps[-1], selected)

    def _maps(self, images: Tensor) -> Iterator[Tensor]:
        """The stem's map, then every stage's."""
        if self.gradient_checkpointing and self.training:
            _refuse_checkpointing()
        check_image_shape(images, self.config.in_channels)
        check_image_dtype(images, self.conv1.weight)
        images = images.contiguous(memory_format=torch.channels_last)  # a quarter faster to train on a CPU
        x = self.relu(self.bn1(self.conv1(images)))
        yield x
        x = self.maxpool(x)
        for stage in self.stages():
            x = stage(x)
            yield x

    def pool(self, features: Tensor) -> Tensor:
        """The head's input: one vector per image, `b c`."""
        return reduce(features, "b c gh gw -> b c", "mean")

    def stages(self) -> list[nn.Module]:
        return [self.get_submodule(f"layer{number}") for number in range(1, self.num_layers)]

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the head by a newly initialized one; 0 classes: none."""
        self.config = replace(self.config, num_classes=num_classes)
        self.fc = self._new_head().to(self.conv1.weight).train(self.training)
        if isinstance(self.fc, nn.Linear):
            initialize_head(self.fc)

    def set_image_size(self, image_size: int | tuple[int, int]) -> None:
        """Record the size of the images, (height, width) or a square one; a ResNet takes every size."""
        size = (image_size, image_size) if isinstance(image_size, int) else (image_size[0], image_size[1])
        self.config = replace(self.config, image_size=size)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """ValueError if enabled: recomputing would update BatchNorm's statistics twice."""
        if enable:
            _refuse_checkpointing()

    @property
    def num_layers(self) -> int:
        return len(STAGES[self.config.depth][1]) + 1

    def layer_of(self, parameter_name: str) -> int:
        """Depth of a parameter, for layer-wise rates: 0 the stem, `num_layers` the head."""
        first = parameter_name.split(".")[0]
        if first.startswith("layer"):
            return int(first.removeprefix("layer"))
        return self.num_layers if first == "fc" else 0

    def head_names(self) -> tuple[str, ...]:
        return ("fc",) if self.config.num_classes else ()


def _refuse_checkpointing() -> Never:
    rule = "recomputing would count every batch twice in a ResNet's BatchNorm"
    raise ValueError(f"train.gradient_checkpointing: True is not valid: {rule}")


def _stage(
    block: type[BasicBlock] | type[Bottleneck], source: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    out = width * block.expansion
    shortcut = None
    if stride != 1 or source != out:
        shortcut = nn.Sequential(nn.Conv2d(source, out, 1, stride, bias=False), nn.BatchNorm2d(out))
    return nn.Sequential(block(source, width, stride, shortcut), *(block(out, width) for _ in range(depth - 1)))


@torch.no_grad()
def initialize(model: ResNet) -> None:
    """He for convolutions; every residual branch starts at zero (Goyal et al. 2017); a small normal head."""
    for module in model.modules():
        match module:
            case nn.Conv2d():
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            case nn.BatchNorm2d():
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
            case nn.Linear():
                initialize_head(module)
    from torchvision.models.resnet import BasicBlock, Bottleneck

    for module in model.modules():
        if isinstance(module, BasicBlock):
            nn.init.zeros_(module.bn2.weight)
        elif isinstance(module, Bottleneck):
            nn.init.zeros_(module.bn3.weight)


@torch.no_grad()
def initialize_head(head: nn.Linear) -> None:
    nn.init.normal_(head.weight, std=0.01)
    nn.init.zeros_(head.bias)
